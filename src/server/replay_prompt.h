#pragma once
// Prompts of conversations, with the exact tokens of the turns that the replay map knows; and the recorder that fills the map.
//
// A known turn is rendered with marks instead of its reasoning and its content. Its tokens then stand between the text before the marks,
// where the model's answer began, and the text after them, with which the template ends a turn. So the prompt is what the template makes of
// the turn as it was sampled: a template that shows no reasoning there (preserve_thinking: false) shows no mark either, and the turn is
// rendered as the client sent it, like one that the client edited.
#include <optional>
#include <vector>

#include "server/chat_request.h"
#include "server/replay_map.h"
#include "server/response_json.h"
#include "server/service.h"

namespace tetrad {

struct ReplayPrompt {
  std::string text;
  std::vector<int> ids;
  bool opens_reasoning = false;
  std::optional<Digest> digest;  // of the salt and the ids; absent without a map
};
enum class ReplayCount { kCount, kQuiet };  // whether the map's statistics hear of it
ReplayPrompt replay_prompt(const Service& service, const ChatRequest& chat, ReplayCount count);

// Around the builder of a chat's answer: keeps what was sampled for every turn that ends whole. The builder itself if there is nothing to
// keep: no map, cache_prompt false, or calls among several choices. Turns that a stop string cut are not whole: what the client sees ends
// before what was sampled. Those that a grammar ended are, though no stop token ends them.
// context: the builder's, before it is made; its make_id is watched.
class TurnRecorder {
 public:
  TurnRecorder(const Service& service, const ChatRequest& chat, const std::optional<Digest>& prompt, ResponseContext& context);
  std::unique_ptr<ResponseBuilder> around(std::unique_ptr<ResponseBuilder> builder);

 private:
  struct Plan;
  std::shared_ptr<Plan> plan_;  // null: nothing is recorded
};

}  // namespace tetrad
