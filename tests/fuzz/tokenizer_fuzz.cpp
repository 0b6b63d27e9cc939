// tokenizer.json from outside: it is refused with a LoadError, or it encodes and decodes. The part of the input after the first NUL byte is
// the text.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t end = input.find('\0');
  const std::string_view file = input.substr(0, end);
  const std::string_view text = end == std::string_view::npos ? std::string_view("a b  <x>\r\n 12\xC3\xA9") : input.substr(end + 1);
  try {
    const tetrad::Tokenizer tokenizer = tetrad::Tokenizer::parse(file, "fuzz");
    for (const bool added : {true, false}) {
      const std::vector<int> ids = tokenizer.encode(text, added);
      tetrad::StreamDetokenizer stream(tokenizer);
      std::string streamed;
      for (const int id : ids) streamed += stream.feed(id);
      if (streamed + stream.finish() != tokenizer.decode(ids)) std::abort();
    }
  } catch (const tetrad::LoadError&) {
  } catch (const tetrad::InputError&) {
  }
  return 0;
}
