// Paddle's ops as its two file formats spell them (phi/ops/yaml/ops.yaml and op_compat.yaml): operands by
// place in PIR and by name in a ProgramDesc, attributes with the type a file gives them. Programs are written
// in PIR's spelling; this table is what a ProgramDesc needs beyond it. Not what an op means:
// paddle_ops_*.cc.
#pragma once

#include <string_view>

namespace oar::paddle {

struct OpSchema {
  const char* name;  // PIR's
  // Words by PIR's place, "Slot*@attr:I": the ProgramDesc's slot ("-": it has none), "*" where it is a list,
  // and the attribute that a constant becomes there.
  const char* inputs;
  // "Slot*" likewise; "MeanOut=1" is the variable of operand 1; "+XShape" exists in a ProgramDesc alone, for
  // gradients.
  const char* outputs;
  // PIR's attributes "name:T=value"; without a value, the op brings it. T: b bool, i i32, l i64, f f32,
  // d f64, s string, I L D arrays of i l d, A an int array, t an element type, p and q a place (undefined,
  // CPU).
  const char* attrs;
  const char* legacy = nullptr;  // null: the same name
  // Where a ProgramDesc differs: "ours=theirs:T"; "ours=-" is left out; "+theirs:T=value" it has alone, of
  // the op's attribute of that name where there is one.
  const char* legacy_attrs = "";
};

// Null when no op of that name is written.
const OpSchema* find_schema(std::string_view name);

// Calls f for each word between blanks.
template <class F>
void each_schema_word(std::string_view words, F&& f) {
  while (!words.empty()) {
    const size_t end = words.find(' ');
    if (end != 0) f(words.substr(0, end));
    if (end == std::string_view::npos) break;
    words.remove_prefix(end + 1);
  }
}

// "name:T=value", "ours=theirs:T", "ours=-".
struct SchemaAttr {
  std::string_view name, other, value;
  char type = 0;
  bool has_value = false;
};
SchemaAttr pir_attr(std::string_view word);
SchemaAttr legacy_attr(std::string_view word);

// "Slot*@attr:I", "Slot=1".
struct SchemaSlot {
  std::string_view slot, attr;
  char attr_type = 0;
  bool list = false;
  int alias = -1;
};
SchemaSlot schema_slot(std::string_view word);

}  // namespace oar::paddle
