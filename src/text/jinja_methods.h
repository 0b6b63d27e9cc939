#pragma once
// Methods of strings, dicts and lists.
#include <string_view>

#include "text/jinja_value.h"

namespace tetrad::jinja {

// Whether Python's type of `object` has a method of that name: `x.items` is then the method, even where a dict has a key "items".
bool has_method(const Value& object, std::string_view name);
// Whether the interpreter can call a method of that name on some type; the parser refuses the others.
bool known_method(std::string_view name);
Value call_method(Heap& heap, const Method& method, const Args& args);

}  // namespace tetrad::jinja
