// Parameter files: records back to back, no header, no padding, no names, little-endian; and where a program
// and its parameters lie on disk.
//
//   u32 0 | u64 lod levels L, then L x {u64 n, n bytes} | u32 0 | i32 n, n bytes of TensorDesc | the elements
#include <filesystem>

#include "engine/base/format.h"
#include "engine/base/wire_reader.h"
#include "engine/import/import.h"
#include "engine/import/paddle_program.h"
#include "engine/import/paddle_wire.h"
#include "engine/loader/byte_reader.h"
#include "engine/tensor/model_file.h"

namespace oar::paddle {
namespace {

namespace fs = std::filesystem;

std::string dims_text(const std::vector<int64_t>& dims) {
  std::string s = "[";
  for (size_t k = 0; k < dims.size(); ++k) s += cat(k ? ", " : "", dims[k]);
  return s + "]";
}

Status read_tensor_desc(std::string_view bytes, std::string_view where, ValueType& type) {
  WireReader reader(bytes);
  while (const auto f = reader.next()) {
    if (f->number == 1 && f->is_varint()) {
      const auto number = static_cast<int32_t>(f->value);
      type.dtype = dtype_word(number);
      if (!dtype_named(type.dtype)) {
        return unimplemented(cat(where, ": data type ", number, " is not a tensor element that Oar reads"));
      }
    } else if (f->number == 2 && f->is_varint()) {
      type.dims.push_back(static_cast<int64_t>(f->value));
    } else if (f->number == 2 && f->is_bytes() && !unpack_varints(f->bytes, type.dims)) {
      return data_loss(cat(where, ": packed dims are damaged"));
    }
  }
  if (!reader.ok()) return data_loss(cat(where, ": the tensor description is damaged"));
  if (type.dtype.empty()) return data_loss(cat(where, ": the tensor description names no data type"));
  return ok_status();
}

// One record, which must be what `value` declares. With `later` given the copy of unaligned values waits
// there.
Result<Tensor> read_record(const Value& value, const Buffer& file, ByteReader& reader, std::string_view name,
                           DeferredCopies* later) {
  const std::string where = cat(name, ": parameter ", show_name(value.name), " at byte ", reader.position());
  uint32_t version = 0;
  OAR_RETURN_IF_ERROR(reader.read(cat("the version of ", show_name(value.name)), version));
  if (version != 0) {
    return unimplemented(
        cat(where, ": record version ", version, "; only 0 exists. Does the file belong to the program?"));
  }
  uint64_t levels = 0;
  OAR_RETURN_IF_ERROR(reader.read("the number of LoD levels", levels));
  OAR_RETURN_IF_ERROR(reader.check_count(levels, sizeof(uint64_t), "the number of LoD levels"));
  std::span<const std::byte> skipped;
  for (uint64_t k = 0; k < levels; ++k) {
    uint64_t size = 0;
    OAR_RETURN_IF_ERROR(reader.read("the size of a LoD level", size));
    OAR_RETURN_IF_ERROR(reader.take(size, "a LoD level", skipped));
  }
  OAR_RETURN_IF_ERROR(reader.read(cat("the tensor version of ", show_name(value.name)), version));
  if (version != 0) return unimplemented(cat(where, ": tensor version ", version, "; only 0 exists"));
  int32_t size = 0;
  OAR_RETURN_IF_ERROR(reader.read("the size of a tensor description", size));
  if (size < 0) return data_loss(cat(where, ": the tensor description has ", size, " bytes"));
  std::span<const std::byte> desc;
  OAR_RETURN_IF_ERROR(reader.take(static_cast<uint64_t>(size), "a tensor description", desc));
  ValueType type;
  OAR_RETURN_IF_ERROR(read_tensor_desc(as_text(desc), where, type));
  if (type.dtype != value.type.dtype || type.dims != value.type.dims) {
    return data_loss(cat(where, " is ", type.dtype, dims_text(type.dims), ", but the program declares ",
                         value.type.dtype, dims_text(value.type.dims),
                         "; these parameters belong to another program"));
  }
  if (type.dims.size() > Shape::kMaxRank) {
    return unimplemented(
        cat(where, " has ", type.dims.size(), " axes; at most ", Shape::kMaxRank, " are read"));
  }
  for (int64_t d : type.dims) {
    if (d < 0) return data_loss(cat(where, " has the extent ", d));
  }
  const Shape shape{std::span<const int64_t>(type.dims)};
  const Format format = Format::of(*dtype_named(type.dtype));
  OAR_ASSIGN(const int64_t bytes, tensor_bytes(shape, format));
  const uint64_t at = reader.position();
  std::span<const std::byte> data;
  OAR_RETURN_IF_ERROR(
      reader.take(static_cast<uint64_t>(bytes), cat("the values of ", show_name(value.name)), data));
  return tensor_from_bytes(shape, format.dtype(), file.slice(at, data.size()), later);
}

// A parameter's name as a file beside the program: never a way out of its folder.
bool is_plain_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string_view::npos &&
         name.find('\0') == std::string_view::npos;
}

bool is_file(const fs::path& p) {
  std::error_code ec;
  return fs::is_regular_file(p, ec);
}

// The program in a folder, by the names that Paddle's exporters write.
Result<std::string> program_in(const std::string& folder) {
  for (const char* name :
       {"inference.json", "inference.pdmodel", "model.json", "model.pdmodel", "__model__"}) {
    const fs::path p = fs::path(folder) / name;
    if (is_file(p)) return p.string();
  }
  std::vector<std::string> found;
  std::error_code ec;
  for (fs::directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec)) {
    if (it->path().extension() == ".pdmodel") found.push_back(it->path().string());
  }
  if (found.size() == 1) return found[0];
  return not_found(cat(folder, ": ", found.empty() ? "no" : "more than one",
                       " Paddle program here (inference.json, *.pdmodel or __model__); name the file"));
}

// The combined parameter file beside a program, or empty.
std::string parameters_beside(const fs::path& program) {
  fs::path same = program;
  same.replace_extension(".pdiparams");
  if (is_file(same)) return same.string();
  const bool unnamed = program.filename() == "__model__";
  for (const char* name : {"__params__", "params"}) {
    const fs::path params = program.parent_path() / name;
    if (is_file(params) && (unnamed || name == std::string_view("__params__"))) return params.string();
  }
  return {};
}

}  // namespace

Result<std::vector<Tensor>> read_parameters(const Program& program, const Buffer& file, std::string_view name,
                                            int threads) {
  ByteReader reader({static_cast<const std::byte*>(file.data()), file.size()}, name);
  std::vector<Tensor> tensors;
  tensors.reserve(program.parameters.size());
  DeferredCopies copies;
  for (ValueIndex v : program.parameters) {
    OAR_ASSIGN(Tensor t, read_record(program.values[v], file, reader, name, &copies));
    tensors.push_back(std::move(t));
  }
  if (reader.remaining() != 0) {
    return data_loss(cat(name, ": ", reader.remaining(), " bytes follow the last of ", tensors.size(),
                         " parameters; the file belongs to another program"));
  }
  copies.run(threads);
  return tensors;
}

Result<std::vector<Tensor>> read_separate_parameters(const Program& program, const std::string& model,
                                                     const FileOptions& options) {
  std::vector<Tensor> tensors;
  for (ValueIndex v : program.parameters) {
    const Value& value = program.values[v];
    if (!is_plain_name(value.name)) {
      return invalid_argument(cat(program.file, ": parameter ", show_name(value.name), " is no file name"));
    }
    OAR_ASSIGN(const std::string path, file_of_model(model, value.name));
    OAR_ASSIGN(auto file, MappedFile::open(path, options));
    const Buffer bytes = file_slice(file, 0, file->size());
    ByteReader reader({file->data(), file->size()}, path);
    OAR_ASSIGN(Tensor t, read_record(value, bytes, reader, path, nullptr));
    if (reader.remaining() != 0)
      return data_loss(cat(path, ": ", reader.remaining(), " bytes follow the tensor"));
    tensors.push_back(std::move(t));
  }
  return tensors;
}

Result<Model> open_model(const std::string& path, const OpenOptions& options) {
  Model model;
  std::string program_path = path;
  if (is_folder(path)) { OAR_ASSIGN(program_path, program_in(path)); }
  OAR_ASSIGN(auto file, MappedFile::open(program_path, options.file));
  OAR_ASSIGN(model.program,
             parse_program({reinterpret_cast<const char*>(file->data()), file->size()}, program_path));
  if (model.program.parameters.empty()) return model;
  std::string source = options.parameters.empty() ? parameters_beside(program_path) : options.parameters;
  if (source.empty()) {
    const std::string& first = model.program.values[model.program.parameters[0]].name;
    const fs::path folder = fs::path(program_path).parent_path();
    if (is_plain_name(first) && is_file(folder / first)) source = folder.empty() ? "." : folder.string();
  }
  if (source.empty()) {
    if (options.allow_topology) return model;
    return not_found(
        cat(program_path, ": its ", model.program.parameters.size(),
            " parameters are not beside it (the same name with .pdiparams, __params__, or one file each); "
            "name their file (params)"));
  }
  model.parameter_path = source;
  if (is_folder(source)) {
    OAR_ASSIGN(model.parameters,
               read_separate_parameters(model.program, options.parameters.empty() ? program_path : source,
                                        options.file));
    return model;
  }
  OAR_ASSIGN(auto params, MappedFile::open(source, options.file));
  OAR_ASSIGN(model.parameters,
             read_parameters(model.program, file_slice(params, 0, params->size()), source, options.threads));
  OAR_RETURN_IF_ERROR(params->still_whole());
  return model;
}

}  // namespace oar::paddle
