#pragma once
// The log of `tetrad serve` on stderr, as text or as one JSON object a line, and the file of its request log.
#include <string>
#include <string_view>

namespace tetrad::cli {

class ServeLog {
 public:
  explicit ServeLog(bool json) : json_(json) {}

  bool json() const { return json_; }
  void line(std::string_view text) const;  // "tetrad: TEXT"; {"time", "event": "log", "message"}
  void event(std::string_view name, std::string_view text, const std::string& fields) const;  // as JSON: fields, `"a":1,"b":2`, instead
  void object(const std::string& json) const;                                                 // a line that is JSON already

 private:
  bool json_;
};

// A file that lines are appended to, one write each, so that what rotates logs may copy it and cut it to nothing. A write that fails is
// told on stderr once.
class LineFile {
 public:
  explicit LineFile(const std::string& path);  // makes it, for its owner alone, or goes on behind what is there; throws InputError
  LineFile(const LineFile&) = delete;
  LineFile& operator=(const LineFile&) = delete;
  ~LineFile();

  void write(std::string line);

 private:
  std::string path_;
  int file_ = -1;
  bool told_ = false;
};

}  // namespace tetrad::cli
