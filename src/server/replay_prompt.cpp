#include "server/replay_prompt.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "server/http_wire.h"
#include "server/response_parts.h"

namespace tetrad {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxAttempts = 4;  // renderings of a conversation whose turns look known and are not

// A turn that looks known, and what is rendered in its place.
struct MarkedTurn {
  std::size_t message = 0;
  Digest visible = {};
  std::optional<Digest> reasoning;  // that the client sent
  bool in_reasoning = false;
  std::string reasoning_mark, content_mark;
};

const Json& messages_of(const ChatRequest& chat) { return chat.variables.at("messages"); }

std::vector<MarkedTurn> known_turns(const ReplayMap& map, const ChatRequest& chat, const std::string& nonce) {
  std::vector<MarkedTurn> turns;
  const Json& messages = messages_of(chat);
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const Json& message = messages[i];
    if (message.at("role") != "assistant") continue;
    MarkedTurn turn{.message = i,
                    .reasoning = {},
                    .reasoning_mark = fmt::format("{}-{}-r", nonce, i),
                    .content_mark = fmt::format("{}-{}-c", nonce, i)};
    const auto calls = message.find("tool_calls");
    turn.visible = visible_digest(chat.engine.cache_salt, message.at("content").get_ref<const std::string&>(),
                                  calls == message.end() ? Json() : *calls);
    const std::optional<bool> start = map.known_start(turn.visible);
    if (!start) continue;
    turn.in_reasoning = *start;
    if (const auto reasoning = message.find("reasoning_content"); reasoning != message.end())
      turn.reasoning = reasoning_digest(reasoning->get_ref<const std::string&>());
    turns.push_back(std::move(turn));
  }
  return turns;
}

Json marked_variables(const ChatRequest& chat, const std::vector<MarkedTurn>& turns) {
  Json variables = chat.variables;
  for (const MarkedTurn& turn : turns) {
    Json message = {{"role", "assistant"}, {"content", turn.content_mark}};
    if (turn.in_reasoning) message["reasoning_content"] = turn.reasoning_mark;
    variables["messages"][turn.message] = std::move(message);
  }
  return variables;
}

// Ids as they are strung together, and their digest.
class IdChain {
 public:
  explicit IdChain(std::string_view salt) { digest_.add(salt); }

  void add(std::span<const int> ids) {
    ids_.insert(ids_.end(), ids.begin(), ids.end());
    digest_.add_ids(ids);
  }
  Digest digest() const { return digest_.digest(); }
  std::vector<int>& ids() { return ids_; }

 private:
  std::vector<int> ids_;
  DigestBuilder digest_;
};

// A conversation that was rendered with marks becomes ids, turn by turn.
class Splicer {
 public:
  Splicer(const Service& service, const ChatRequest& chat, std::string text)
      : service_(&service), text_(std::move(text)), chain_(chat.engine.cache_salt) {}

  // False if this turn is not the one that the map knows, or its marks are not where they should be.
  bool splice(const MarkedTurn& turn) {
    const std::size_t content = text_.find(turn.content_mark, cursor_);
    const std::size_t start = turn.in_reasoning ? text_.find(turn.reasoning_mark, cursor_) : content;
    if (content == std::string::npos || start == std::string::npos || start > content) return false;
    if (!add_text(start)) return false;
    const auto known = service_->replay->find(turn.visible, chain_.digest());
    if (!known || known->starts_in_reasoning != turn.in_reasoning || (turn.reasoning && *turn.reasoning != known->reasoning)) return false;
    chain_.add(known->tokens);
    cursor_ = content + turn.content_mark.size();
    spliced_ = true;
    return true;
  }

  // What follows the last turn. False if a mark is left, or the turn does not end with a token of its own.
  bool finish(std::string_view nonce) { return text_.find(nonce, cursor_) == std::string::npos && add_rest(); }
  bool add_rest() { return add_text(text_.size()); }

  const std::string& text() const { return text_; }
  IdChain& chain() { return chain_; }

 private:
  // Text up to `end`. Behind a turn it must begin with an added token, or it could have been encoded together with the turn.
  bool add_text(std::size_t end) {
    const std::vector<int> ids = service_->tokenizer->encode(std::string_view(text_).substr(cursor_, end - cursor_));
    if (spliced_ && (ids.empty() || !service_->tokenizer->is_added(ids.front()))) return false;
    chain_.add(ids);
    return true;
  }

  const Service* service_;
  std::string text_;
  IdChain chain_;
  std::size_t cursor_ = 0;
  bool spliced_ = false;
};

// Null if no turn is known after all. `turns`: left are those that were replaced.
std::unique_ptr<Splicer> spliced(const Service& service, const ChatRequest& chat, const std::string& nonce,
                                 std::vector<MarkedTurn>& turns) {
  for (int attempt = 0; attempt < kMaxAttempts && !turns.empty(); ++attempt) {
    std::string text = service.chat_template->render(marked_variables(chat, turns));
    service.check_prompt_bytes(text.size(), chat.prompt_field);
    auto splicer = std::make_unique<Splicer>(service, chat, std::move(text));
    const auto wrong = std::find_if(turns.begin(), turns.end(), [&](const MarkedTurn& turn) { return !splicer->splice(turn); });
    if (wrong == turns.end()) {
      if (splicer->finish(nonce)) return splicer;
      break;
    }
    // Those before it are right; those behind it may be, once it is rendered as it was sent.
    if (attempt + 2 < kMaxAttempts)
      turns.erase(wrong);
    else
      turns.erase(wrong, turns.end());
  }
  turns.clear();
  return nullptr;
}

}  // namespace

ReplayPrompt replay_prompt(const Service& service, const ChatRequest& chat, ReplayCount count) {
  const bool replays = service.replay != nullptr && service.replay->enabled() && chat.engine.reuse_prefix;
  std::vector<MarkedTurn> turns;
  std::unique_ptr<Splicer> splicer;
  if (replays) {
    const std::string nonce = random_id("turn-");
    turns = known_turns(*service.replay, chat, nonce);
    try {
      splicer = spliced(service, chat, nonce, turns);
    } catch (const TemplateError&) {  // of marks: what the client sent is rendered below, or refused in its own words
      turns.clear();
    }
    const Json& messages = messages_of(chat);
    const auto assistants =
        std::count_if(messages.begin(), messages.end(), [](const Json& message) { return message.at("role") == "assistant"; });
    if (count == ReplayCount::kCount)
      service.replay->count(turns.size(), static_cast<std::uint64_t>(assistants) - static_cast<std::uint64_t>(turns.size()));
  }
  if (!splicer) {
    std::string text = service.chat_template->render(chat.variables);
    service.check_prompt_bytes(text.size(), chat.prompt_field);
    splicer = std::make_unique<Splicer>(service, chat, std::move(text));
    TETRAD_CHECK(splicer->add_rest(), "a prompt without turns to replay was not encoded");
  }
  ReplayPrompt prompt;
  prompt.opens_reasoning = prompt_opens_reasoning(splicer->text());
  if (replays) prompt.digest = splicer->chain().digest();
  prompt.ids = std::move(splicer->chain().ids());
  prompt.text = turns.empty() ? splicer->text() : service.tokenizer->decode(prompt.ids);
  return prompt;
}

// --- Recording ---

struct TurnRecorder::Plan {
  struct Choice {
    StopFinder stops;
    std::vector<int> ids = {};
    std::string text = {};
    std::optional<std::size_t> content_at = {};  // TokenEvent's
    bool complete = false;                       // the rest has no use
  };

  ReplayMap* map = nullptr;
  const Tokenizer* tokenizer = nullptr;
  ToolSet tools;
  AnswerForm form;
  bool is_bound = false;
  std::string salt;
  std::vector<int> stop_ids;
  Digest prompt = {};
  std::vector<std::string> call_ids;
  std::vector<Choice> choices;

  void take(const TokenEvent& event);
  void finish(const ChoiceFinishedEvent& event);

 private:
  bool ended_whole(Choice& choice, FinishReason reason) const;
  std::optional<Digest> seen(const Choice& choice, bool ended_by_model, Digest& reasoning) const;
};

void TurnRecorder::Plan::take(const TokenEvent& event) {
  Choice& choice = choices[static_cast<std::size_t>(event.choice)];
  if (choice.complete) return;
  choice.ids.push_back(event.sampled.id);
  choice.stops.add(event.sampled.id);
  choice.text += event.text;
  if (event.content_at) choice.content_at = event.content_at;
}

// The token that ended the turn is taken off: the template writes it. A grammar ends an answer without one, and so does a stop string, but
// in the middle. A token of the turn's structure inside it would forge one.
bool TurnRecorder::Plan::ended_whole(Choice& choice, FinishReason reason) const {
  const bool cut_by_length = reason == FinishReason::kLength || reason == FinishReason::kContext;
  if (!choice.complete && !cut_by_length) {
    if (reason != FinishReason::kStop || choice.ids.empty()) return false;
    if (std::find(stop_ids.begin(), stop_ids.end(), choice.ids.back()) != stop_ids.end())
      choice.ids.pop_back();
    else if (!is_bound || choice.stops.matched_string() != nullptr)
      return false;
  }
  return std::none_of(choice.ids.begin(), choice.ids.end(), [&](int id) { return tokenizer->is_special(id); });
}

// What the client saw of it; nothing if it saw less than a whole turn.
std::optional<Digest> TurnRecorder::Plan::seen(const Choice& choice, bool ended_by_model, Digest& reasoning) const {
  AnswerParser parser(form);
  if (choice.content_at) parser.content_begins_at(*choice.content_at);
  std::vector<AnswerEvent> events;
  const auto append = [&](std::vector<AnswerEvent> more) { std::move(more.begin(), more.end(), std::back_inserter(events)); };
  append(parser.feed(choice.text));
  append(parser.finish(ended_by_model));
  if (parser.in_reasoning() || parser.has_incomplete_call()) return std::nullopt;
  std::string content, thought;
  std::vector<std::string> names, arguments;
  for (const AnswerEvent& event : events) {
    if (const auto* text = std::get_if<ContentDelta>(&event)) content += text->text;
    if (const auto* text = std::get_if<ReasoningDelta>(&event)) thought += text->text;
    if (const auto* call = std::get_if<ToolCallBegin>(&event)) {
      names.push_back(call->name);
      arguments.emplace_back();
    }
    if (const auto* call = std::get_if<ToolCallDelta>(&event)) arguments.back() += call->arguments;
  }
  if (content.empty() && names.empty()) return std::nullopt;
  // Ids are made in the order of the calls: of one choice it is known which is whose.
  if (!names.empty() && (choices.size() > 1 || call_ids.size() < names.size())) return std::nullopt;
  Json calls = Json::array();
  for (std::size_t i = 0; i < names.size(); ++i) {
    Json parsed = Json::parse(arguments[i], nullptr, false);
    if (!parsed.is_object()) return std::nullopt;
    calls.push_back({{"id", call_ids[i]}, {"function", {{"name", names[i]}, {"arguments", std::move(parsed)}}}});
  }
  reasoning = reasoning_digest(thought);
  return visible_digest(salt, content, calls);
}

void TurnRecorder::Plan::finish(const ChoiceFinishedEvent& event) {
  Choice& choice = choices[static_cast<std::size_t>(event.choice)];
  if (!choice.complete) choice.text += event.text;
  if (!ended_whole(choice, event.reason)) return;
  ReplayTurn turn{.tokens = choice.ids, .starts_in_reasoning = form.starts_in_reasoning, .reasoning = {}};
  const std::optional<Digest> visible = seen(choice, choice.complete || event.reason == FinishReason::kStop, turn.reasoning);
  if (!visible) return;
  map->add(*visible, prompt, std::move(turn));
}

TurnRecorder::TurnRecorder(const Service& service, const ChatRequest& chat, const std::optional<Digest>& prompt, ResponseContext& context) {
  if (!prompt || !chat.engine.generation.skip_special) return;
  plan_ = std::make_shared<Plan>();
  plan_->map = service.replay;
  plan_->tokenizer = service.tokenizer;
  plan_->tools = chat.tools;
  plan_->form = answer_form(chat, plan_->tools, context);
  plan_->form.make_id = [] { return std::string("call"); };
  plan_->is_bound = context.is_bound;
  plan_->salt = chat.engine.cache_salt;
  plan_->stop_ids = chat.engine.generation.stop_ids;
  plan_->prompt = *prompt;
  for (int i = 0; i < chat.engine.num_choices; ++i)
    plan_->choices.push_back({.stops = StopFinder(chat.engine.generation, {}, context.token_bytes)});
  context.make_id = [make_id = std::move(context.make_id), plan = plan_] {
    plan->call_ids.push_back(make_id());
    return plan->call_ids.back();
  };
}

namespace {

template <class Plan>
class RecordingBuilder final : public ResponseBuilder {
 public:
  RecordingBuilder(std::unique_ptr<ResponseBuilder> builder, std::shared_ptr<Plan> plan)
      : builder_(std::move(builder)), plan_(std::move(plan)) {}

  // The builder first: it makes the ids of the calls.
  std::vector<ServerSentEvent> feed(const EngineEvent& event, int prompt) override {
    std::vector<ServerSentEvent> out = builder_->feed(event, prompt);
    if (const auto* token = std::get_if<TokenEvent>(&event)) {
      plan_->take(*token);
      if (plan_->choices.size() == 1 && builder_->enough()) plan_->choices[0].complete = true;
    } else if (const auto* end = std::get_if<ChoiceFinishedEvent>(&event)) {
      plan_->finish(*end);
    }
    return out;
  }
  std::string body() const override { return builder_->body(); }
  bool finished() const override { return builder_->finished(); }
  bool enough() const override { return builder_->enough(); }
  std::optional<ServerSentEvent> ping() override { return builder_->ping(); }
  const ApiError* failure() const override { return builder_->failure(); }

 private:
  std::unique_ptr<ResponseBuilder> builder_;
  std::shared_ptr<Plan> plan_;
};

}  // namespace

std::unique_ptr<ResponseBuilder> TurnRecorder::around(std::unique_ptr<ResponseBuilder> builder) {
  if (!plan_) return builder;
  return std::make_unique<RecordingBuilder<Plan>>(std::move(builder), plan_);
}

}  // namespace tetrad
