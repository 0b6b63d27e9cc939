#pragma once
// The filters of `x | NAME`: jinja_filters.cpp holds the table and the filters of single values,
// jinja_sequence_filters.cpp those of lists.
#include "text/jinja_ast.h"

namespace tetrad::jinja {

Value filter_tojson(Heap& heap, const Value& input, const Args& args);
Value filter_join(Heap& heap, const Value& input, const Args& args);
Value filter_first(Heap& heap, const Value& input, const Args& args);
Value filter_last(Heap& heap, const Value& input, const Args& args);
Value filter_list(Heap& heap, const Value& input, const Args& args);
Value filter_reverse(Heap& heap, const Value& input, const Args& args);
Value filter_items(Heap& heap, const Value& input, const Args& args);
Value filter_map(Heap& heap, const Value& input, const Args& args);
Value filter_select(Heap& heap, const Value& input, const Args& args);
Value filter_reject(Heap& heap, const Value& input, const Args& args);
Value filter_selectattr(Heap& heap, const Value& input, const Args& args);
Value filter_rejectattr(Heap& heap, const Value& input, const Args& args);
Value filter_sort(Heap& heap, const Value& input, const Args& args);
Value filter_dictsort(Heap& heap, const Value& input, const Args& args);
Value filter_unique(Heap& heap, const Value& input, const Args& args);
Value filter_min(Heap& heap, const Value& input, const Args& args);
Value filter_max(Heap& heap, const Value& input, const Args& args);
Value filter_sum(Heap& heap, const Value& input, const Args& args);

}  // namespace tetrad::jinja
