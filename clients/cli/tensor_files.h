// Tensors from and to files: NumPy's .npy (format 1 to 3, C and Fortran order), ONNX's .pb, and raw .bin
// bytes in the shape the model declares.
#pragma once

#include <string>

#include "engine/import/onnx.h"

namespace oar::cli {

// By the file's ending. `spec` gives what a .bin and a .pb do not say; null: a .bin is an error.
Result<Datum> read_value(const std::string& path, const IoSpec& spec);
Result<Tensor> parse_npy(Buffer bytes);
// .npy where NumPy has the dtype, nullopt where it has none (then write a .pb).
std::optional<std::string> npy_bytes(const Tensor& t);
// A value's name as a file name: letters, digits, dot, dash and underscore.
std::string value_file_name(const std::string& name);
Status write_file(const std::string& path, std::string_view bytes);

}  // namespace oar::cli
