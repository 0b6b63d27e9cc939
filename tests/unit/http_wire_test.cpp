#include "server/http_wire.h"

#include <gtest/gtest.h>

#include "server/api_keys.h"
#include "server/http_errors.h"

namespace tetrad::http_wire_test {
namespace {

TEST(http_wire, a_response_has_its_length_and_its_request_id) {
  const HttpResponse response{.status = 503, .headers = {{"Retry-After", "1"}}, .body = "{}"};
  EXPECT_EQ(wire_response(response, {.request_id = "abc"}),
            "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nX-Request-Id: abc\r\nRetry-After: 1\r\n"
            "Content-Length: 2\r\nConnection: keep-alive\r\n\r\n{}");
  const std::string head = wire_response(response, {.request_id = "abc", .keep_alive = false, .head_only = true});
  EXPECT_NE(head.find("Content-Length: 2\r\nConnection: close\r\n\r\n"), std::string::npos);
  EXPECT_TRUE(head.ends_with("\r\n\r\n"));
}

TEST(http_wire, a_stream_has_chunks_instead) {
  const std::string head = wire_response({.content_type = "text/event-stream"}, {.chunked = true});
  EXPECT_EQ(head.find("Content-Length"), std::string::npos);
  EXPECT_NE(head.find("Transfer-Encoding: chunked\r\n"), std::string::npos);
  EXPECT_EQ(wire_chunk("data: 0123456789\n\n"), "12\r\ndata: 0123456789\n\n\r\n");
}

TEST(http_wire, events_are_lines_of_their_own) {
  std::string out;
  append_event(out, "{}");
  append_event(out, "{}", "ping");
  EXPECT_EQ(out, "data: {}\n\nevent: ping\ndata: {}\n\n");
}

TEST(http_wire, request_ids_are_taken_only_if_they_are_harmless) {
  EXPECT_EQ(request_id_from("Run-7_b.c:1"), "Run-7_b.c:1");
  for (const std::string& bad :
       {std::string(), std::string("a b"), std::string("a\r\nX: 1"), std::string("caf\xC3\xA9"), std::string(129, 'a')}) {
    const std::string made = request_id_from(bad);
    EXPECT_TRUE(made.starts_with("req-")) << made;
    EXPECT_EQ(made.size(), 28u);
    EXPECT_NE(made, request_id_from(bad));
  }
  EXPECT_EQ(request_id_from(std::string(128, 'a')).size(), 128u);
}

TEST(http_wire, percent_escapes) {
  EXPECT_EQ(percent_decoded("a%2Fb%20c"), "a/b c");
  EXPECT_EQ(percent_decoded("100%"), "100%");
  EXPECT_EQ(percent_decoded("%2"), "%2");
  EXPECT_EQ(percent_decoded("%zz%41"), "%zzA");
}

HttpRequest with_header(std::string name, std::string value) {
  HttpRequest request;
  request.headers.emplace_back(std::move(name), std::move(value));
  return request;
}

TEST(api_keys, either_header_opens_and_nothing_else) {
  const ApiKeys keys({"first-key", "second"});
  EXPECT_TRUE(keys.required());
  EXPECT_TRUE(keys.allows(with_header("authorization", "Bearer first-key")));
  EXPECT_TRUE(keys.allows(with_header("authorization", "bearer  second")));
  EXPECT_TRUE(keys.allows(with_header("x-api-key", "second")));
  EXPECT_FALSE(keys.allows({}));
  for (const char* wrong :
       {"", "Bearer", "Bearer ", "Bearer first-ke", "Bearer first-keyy", "Bearer first-keY", "Basic first-key", "first-key"})
    EXPECT_FALSE(keys.allows(with_header("authorization", wrong))) << wrong;
  EXPECT_FALSE(keys.allows(with_header("x-api-key", "")));
  EXPECT_TRUE(ApiKeys().allows({}));
}

TEST(api_keys, comparison_takes_any_lengths) {
  EXPECT_TRUE(equal_in_constant_time("abc", "abc"));
  EXPECT_FALSE(equal_in_constant_time("abc", "abcabc"));
  EXPECT_FALSE(equal_in_constant_time("abcabc", "abc"));
  EXPECT_FALSE(equal_in_constant_time("abc", ""));
  EXPECT_FALSE(equal_in_constant_time("", ""));
}

TEST(api_keys, keys_that_no_header_can_carry_are_refused) {
  EXPECT_THROW(ApiKeys({""}), InputError);
  EXPECT_THROW(ApiKeys({"a b"}), InputError);
  EXPECT_THROW(ApiKeys({"a\n"}), InputError);
  EXPECT_THROW(read_key_file("/nowhere/keys"), InputError);
}

TEST(http_errors, each_api_has_its_shape) {
  EXPECT_EQ(shape_of("/v1/messages"), ApiShape::kAnthropic);
  EXPECT_EQ(shape_of("/v1/messages/count_tokens"), ApiShape::kAnthropic);
  EXPECT_EQ(shape_of("/v1/messagesx"), ApiShape::kOpenAi);
  EXPECT_EQ(shape_of("/v1/chat/completions"), ApiShape::kOpenAi);
  const ApiError full = api_error(EngineErrorKind::kQueueFull, "full", "id");
  const HttpResponse openai = error_response(full, ApiShape::kOpenAi), anthropic = error_response(full, ApiShape::kAnthropic);
  EXPECT_EQ(openai.status, 503);
  EXPECT_EQ(anthropic.status, 529);
  const auto retry_after = [](const HttpResponse& response) {
    for (const auto& [name, value] : response.headers)
      if (name == "Retry-After") return value;
    return std::string();
  };
  EXPECT_NE(retry_after(openai), "");
  EXPECT_NE(retry_after(anthropic), "");
  EXPECT_NE(openai.body.find("\"code\":\"queue_full\""), std::string::npos) << openai.body;
  EXPECT_NE(anthropic.body.find("overloaded_error"), std::string::npos) << anthropic.body;
}

}  // namespace
}  // namespace tetrad::http_wire_test
