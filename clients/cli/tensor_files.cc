#include "clients/cli/tensor_files.h"

#include <charconv>
#include <cstdio>
#include <cstring>

#include "engine/tensor/mapped_file.h"

namespace oar::cli {
namespace {

struct NpyType {
  const char* descr;
  DType dtype;
};
// https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html; little-endian or one byte
constexpr NpyType kNpy[] = {{"<f4", DType::kF32}, {"<f8", DType::kF64}, {"<f2", DType::kF16},
                            {"|i1", DType::kI8},  {"|u1", DType::kU8},  {"<i2", DType::kI16},
                            {"<u2", DType::kU16}, {"<i4", DType::kI32}, {"<u4", DType::kU32},
                            {"<i8", DType::kI64}, {"<u8", DType::kU64}, {"|b1", DType::kBool}};

bool ends_with(const std::string& s, std::string_view end) {
  return s.size() >= end.size() && s.compare(s.size() - end.size(), end.size(), end) == 0;
}

// The text after 'key': in the header's Python dictionary.
std::string_view after(std::string_view header, std::string_view key) {
  const size_t at = header.find(key);
  if (at == std::string_view::npos) return {};
  std::string_view rest = header.substr(at + key.size());
  const size_t colon = rest.find(':');
  if (colon == std::string_view::npos) return {};
  rest.remove_prefix(colon + 1);
  while (!rest.empty() && rest[0] == ' ') rest.remove_prefix(1);
  return rest;
}

// Raw bytes in the declared shape; one unknown extent follows from the size.
Result<Tensor> from_raw(Buffer bytes, const IoSpec& spec) {
  if (spec.kind != IoSpec::Kind::kTensor || !spec.typed || !spec.ranked || spec.dtype == DType::kString) {
    return invalid_argument(
        "a .bin file needs an input of declared element type and rank; give a .npy or .pb");
  }
  const int64_t width = element_format(spec.dtype).block_bytes();
  const auto count = static_cast<int64_t>(bytes.size()) / width;
  std::vector<int64_t> dims;
  int64_t known = 1, unknown = -1;
  for (size_t k = 0; k < spec.dims.size(); ++k) {
    dims.push_back(spec.dims[k].declared());
    if (dims[k] < 0 && unknown >= 0) dims[k] = 1;  // further unknown extents: 1 (a batch of one)
    else if (dims[k] < 0) unknown = static_cast<int64_t>(k);
    if (dims[k] >= 0 && __builtin_mul_overflow(known, dims[k], &known))
      return invalid_argument("the declared shape overflows");
  }
  if (unknown >= 0) dims[static_cast<size_t>(unknown)] = known > 0 ? count / known : 0;
  OAR_ASSIGN(const Shape shape, checked_shape(dims));
  return tensor_from_bytes(shape, spec.dtype, std::move(bytes));
}

}  // namespace

Result<Tensor> parse_npy(Buffer bytes) {
  const auto* p = static_cast<const char*>(bytes.data());
  if (bytes.size() < 10 || std::memcmp(p, "\x93NUMPY", 6) != 0) return data_loss("not a .npy file");
  const bool wide = p[6] >= 2;
  uint32_t length = 0;
  std::memcpy(&length, p + 8, wide ? 4 : 2);
  const uint64_t start = wide ? 12 : 10;
  if (bytes.size() < start || length > bytes.size() - start) return data_loss("the .npy header is truncated");
  const std::string_view header(p + start, length);
  const std::string_view descr = after(header, "'descr'"), order = after(header, "'fortran_order'"),
                         shape = after(header, "'shape'");
  std::optional<DType> dtype;
  for (const NpyType& t : kNpy) {
    const std::string_view own(t.descr);
    if (descr.size() > 4 && descr.substr(2, 2) == own.substr(1) &&
        (descr[1] == own[0] || descr[1] == '|' || descr[1] == '='))
      dtype = t.dtype;
  }
  if (!dtype)
    return unimplemented(
        cat(".npy element type ", descr.substr(0, std::min<size_t>(descr.size(), 8)), " is not supported"));
  std::vector<int64_t> dims;
  if (shape.empty() || shape[0] != '(') return data_loss("the .npy header has no shape");
  for (size_t at = 1; at < shape.size() && shape[at] != ')';) {
    if (shape[at] == ' ' || shape[at] == ',') {
      ++at;
      continue;
    }
    int64_t v = 0;
    const auto r = std::from_chars(shape.data() + at, shape.data() + shape.size(), v);
    if (r.ec != std::errc()) return data_loss("the .npy header's shape is damaged");
    dims.push_back(v);
    at = static_cast<size_t>(r.ptr - shape.data());
  }
  const bool fortran = order.substr(0, 4) == "True";
  if (fortran) std::reverse(dims.begin(), dims.end());
  OAR_ASSIGN(const Shape s, checked_shape(dims));
  OAR_ASSIGN(Tensor t,
             tensor_from_bytes(s, *dtype, bytes.slice(start + length, bytes.size() - start - length)));
  if (!fortran || s.rank() < 2) return t;
  Node node;
  node.op = find_op("transpose");
  node.outputs.resize(1);
  const Datum d(std::move(t));
  const Datum* in[] = {&d};
  OAR_ASSIGN(auto out, evaluate_op(node, in, {}));
  return std::move(out[0].tensor);
}

Result<Datum> read_value(const std::string& path, const IoSpec& spec) {
  OAR_ASSIGN(const auto file, MappedFile::open(path));
  Buffer bytes = file_slice(file, 0, file->size());
  auto value = [&]() -> Result<Datum> {
    if (ends_with(path, ".pb")) return read_onnx_value(std::move(bytes), spec.kind, path);
    if (ends_with(path, ".npy")) {
      OAR_ASSIGN(Tensor t, parse_npy(std::move(bytes)));
      return Datum(std::move(t));
    }
    if (ends_with(path, ".bin")) {
      OAR_ASSIGN(Tensor t, from_raw(std::move(bytes), spec));
      return Datum(std::move(t));
    }
    return invalid_argument("inputs are .npy, .pb or .bin files");
  }();
  if (!value.ok()) return Status(value.status().code(), cat(path, ": ", value.status().message()));
  return value;
}

std::optional<std::string> npy_bytes(const Tensor& t) {
  const char* descr = nullptr;
  for (const NpyType& n : kNpy) {
    if (n.dtype == t.format().dtype()) descr = n.descr;
  }
  if (!descr) return std::nullopt;
  std::string shape;
  for (int64_t d : t.shape()) shape += cat(d, ",");
  std::string header = cat("{'descr': '", descr, "', 'fortran_order': False, 'shape': (", shape, "), }");
  while ((10 + header.size() + 1) % 64 != 0) header += ' ';
  header += '\n';
  std::string out("\x93NUMPY\x01\x00", 8);
  out += static_cast<char>(header.size() & 0xff);
  out += static_cast<char>(header.size() >> 8);
  out += header;
  out.append(static_cast<const char*>(t.data()), t.bytes());
  return out;
}

std::string value_file_name(const std::string& name) {
  std::string s;
  for (char c : name) s += std::isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-' ? c : '_';
  return s.empty() || s[0] == '.' ? "_" + s : s;
}

Status write_file(const std::string& path, std::string_view bytes) {
  std::FILE* f = std::fopen(path.c_str(), "wb");
  const bool wrote = f && std::fwrite(bytes.data(), 1, bytes.size(), f) == bytes.size();
  const bool closed = f && std::fclose(f) == 0;
  return wrote && closed ? ok_status() : unavailable(cat("cannot write ", path));
}

}  // namespace oar::cli
