// A Paddle program as its file says it, before it means anything: ops with attributes, values, blocks, named
// inputs and outputs, parameters. Both generations are read into this one form: ProgramDesc protobufs
// (.pdmodel, paddle_protobuf.cc) and PIR json (.json, paddle_pir.cc). What it is not: our Graph. paddle.h
// makes that of it, op by op, without having to know how the file spelled it.
//
// Files are hostile until checked: every index below lies inside its vector, and PIR values are defined
// before they are used. Nothing larger is allocated than the bytes present account for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/base/status.h"
#include "engine/tensor/mapped_file.h"
#include "engine/tensor/tensor.h"

namespace oar::paddle {

// monostate: a null attribute, or one of a kind that no inference op reads (process meshes, types).
using AttrData = std::variant<std::monostate, bool, int64_t, double, std::string, std::vector<int64_t>,
                              std::vector<double>, std::vector<std::string>>;

struct Attr {
  std::string name;
  AttrData data;  // lists of bool are lists of 0 and 1
  // For messages: 1, 0.5, 'relu', [1, 2]; booleans as 0 and 1, long values cut.
  std::string to_string() const;
};

// Of no op an inference reads this one, whatever its value (call stacks): readers need not keep it.
bool is_noise(std::string_view attr);

struct ValueType {
  enum class Kind : uint8_t { kNone, kTensor, kVector, kTensorArray, kOther };
  Kind kind = Kind::kNone;
  std::string dtype;          // Paddle's word: "float32", "complex64"
  std::vector<int64_t> dims;  // -1: unknown
};

using ValueIndex = int32_t;

struct Value {
  std::string name;  // of the variable (legacy) or parameter; "%12" for other PIR values
  ValueType type;
  bool parameter = false;
};

// One operand or result. A ProgramDesc names it and may give a list; PIR gives one value, by position.
// An empty list is an optional operand left out.
struct Slot {
  std::string name;
  std::vector<ValueIndex> values;
};

struct Op {
  std::string type;  // "conv2d", "builtin.combine", "cf.yield"; the pd_op dialect goes without prefix
  std::vector<Slot> inputs, outputs;
  std::vector<Attr> attrs;
  std::vector<int32_t> blocks;  // branches or body
  uint64_t location = 0;        // byte offset in a ProgramDesc, number of the op in a PIR file

  // Null when absent.
  const Attr* attr(std::string_view name) const;
  const Slot* input(std::string_view name) const;
  const Slot* output(std::string_view name) const;
};

struct Block {
  int32_t parent = -1;
  std::vector<ValueIndex> args;  // PIR: what a loop hands its body
  std::vector<Op> ops;
};

// What the caller binds, under the file's own name.
struct Port {
  std::string name;
  ValueIndex value = 0;
};

struct Program {
  enum class Kind : uint8_t { kLegacy, kPir } kind = Kind::kLegacy;
  int64_t version = 0;
  std::string file;  // for messages
  std::vector<Value> values;
  std::vector<Block> blocks;  // 0 is the program; at least one
  std::vector<Port> inputs, outputs;
  std::vector<ValueIndex> parameters;  // ascending by the bytes of their names, as .pdiparams stores them

  // "model.json: op 17 (conv2d)"; "model.pdmodel: op conv2d at byte 1234".
  std::string where(const Op& op) const;
};

// `file` names the bytes in messages. INVALID_ARGUMENT, DATA_LOSS or UNIMPLEMENTED.
Result<Program> parse_program_desc(std::string_view bytes, std::string_view file);
Result<Program> parse_pir(std::string_view text, std::string_view file);
// Whether bytes begin as a program of either generation does; an ONNX model begins with its IR version.
bool is_program(std::string_view bytes);
// Either, told apart by the first character.
Result<Program> parse_program(std::string_view bytes, std::string_view file);

// The dtype a Paddle word names ("float32", "bfloat16"); nullopt for complex and unknown ones.
std::optional<DType> dtype_named(std::string_view word);
// The word for a number of VarType.Type; empty when it is no tensor element.
std::string_view dtype_word(int64_t var_type);
// The way back: word and number of a dtype; empty and -1 where no Paddle tensor can hold it.
std::string_view word_of(DType dtype);
int64_t var_type_of(std::string_view word);

// The tensors of a combined parameter file, in program.parameters order. Every record must match its
// parameter's dtype and shape, and the file must end after the last. Tensors view `file` where their bytes
// are aligned, which Paddle does not provide for, and are copies elsewhere, made by `threads` threads.
Result<std::vector<Tensor>> read_parameters(const Program& program, const Buffer& file, std::string_view name,
                                            int threads = 1);
// One file per parameter, named by it, as file_of_model() has it beside `model`: the program, or a folder.
Result<std::vector<Tensor>> read_separate_parameters(const Program& program, const std::string& model,
                                                     const FileOptions& options = {});

struct Model {
  Program program;
  std::vector<Tensor> parameters;  // by program.parameters; empty where a program came without its weights
  std::string parameter_path;      // file or folder, empty without weights
};

struct OpenOptions {
  FileOptions file = {};
  std::string parameters = {};  // path of the parameter file or folder; empty: looked for beside the program
  bool allow_topology = false;  // a program whose weights are not there is no error
  int threads = 1;              // that copy parameters
};

// `path`: a program (.pdmodel, .json, __model__) or a folder that holds one.
Result<Model> open_model(const std::string& path, const OpenOptions& options = {});

}  // namespace oar::paddle
