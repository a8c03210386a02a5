// ONNX (https://github.com/onnx/onnx/blob/main/docs/IR.md): ai.onnx opset 7 to kOnnxNewest, model-local
// functions (inlined), If/Loop/Scan, sequences and optionals, external data. Domains of other vendors are
// refused by name unless the file carries their functions.
#pragma once

#include "engine/import/import.h"

namespace oar {

inline constexpr int64_t kOnnxOldest = 1;  // ops that changed before 7 are only known from there on
inline constexpr int64_t kOnnxNewest = 28;

// `path` of a model file; external data is looked for beside it and nowhere else.
Result<ImportedModel> import_onnx(const std::string& path, const ImportOptions& options = {});
// The same from bytes in memory; `path` is the file they are from, beside which external data lies, as
// file_of_model() has it (empty: none may be used).
Result<ImportedModel> import_onnx_bytes(Buffer bytes, const std::string& name, const std::string& path,
                                        const ImportOptions& options = {});

// A serialized TensorProto, SequenceProto or OptionalProto: test vectors, inputs from files.
Result<Datum> read_onnx_value(Buffer bytes, IoSpec::Kind kind, const std::string& name);
// The bytes of a TensorProto (numbers and strings), for outputs.
Result<std::string> write_onnx_tensor(const Tensor& t, std::string_view name);
// ONNX's number of a dtype and back; 0 and nullopt where there is none.
int onnx_type_of(DType dtype);
std::optional<DType> dtype_of_onnx(int64_t type);

}  // namespace oar
