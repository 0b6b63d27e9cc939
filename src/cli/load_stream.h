#pragma once
// What a load client sees of one answer, read from its bytes as they come.
#include <string>
#include <string_view>
#include <vector>

namespace tetrad::cli {

// Times are in seconds on the client's clock.
struct LoadAnswer {
  int status = 0;          // of HTTP; 0: none came
  std::string error = {};  // what went wrong, in a word: "connect", "timeout", "cut", the code of an error body, "http_503"; empty: nothing
  double start = 0, first_token = 0, last_token = 0, end = 0;
  std::vector<double> gaps = {};  // between events that hold tokens
  int prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
  std::string text = {};  // what an assistant said, without its thoughts
  std::string body = {};  // of an answer that is no stream

  bool good() const { return error.empty(); }
};

// The events of a stream of /v1/completions or /v1/chat/completions.
class LoadStream {
 public:
  void feed(std::string_view bytes, double now, LoadAnswer& answer);
  bool done() const { return done_; }  // "[DONE]" has come

 private:
  void take_event(std::string_view data, double now, LoadAnswer& answer);

  std::string pending_;
  bool done_ = false;
};

// Of a response that is no stream: its usage, or the kind of its error.
void read_load_body(LoadAnswer& answer);

}  // namespace tetrad::cli
