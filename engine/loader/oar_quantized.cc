#include "engine/loader/oar_quantized.h"

#include "engine/base/format.h"
#include "engine/loader/byte_reader.h"

namespace oar {
namespace {

Result<Shape> matrix_shape(const json::object& entry, const std::string& where) {
  const json::value* v = entry.if_contains("shape");
  if (v != nullptr && v->is_array() && v->get_array().size() == 2) {
    const json::value &rows = v->get_array()[0], &cols = v->get_array()[1];
    constexpr int64_t kMax = int64_t{1} << 40;
    if (rows.is_int64() && cols.is_int64() && rows.get_int64() > 0 && cols.get_int64() > 0 &&
        rows.get_int64() <= kMax && cols.get_int64() <= kMax) {
      return Shape{rows.get_int64(), cols.get_int64()};
    }
  }
  return invalid_argument(cat(where, ": 'shape' must be two positive numbers, rows and columns"));
}

}  // namespace

Status apply_formats(const json::object& described, TensorMap& tensors, const std::string& what) {
  for (const auto& member : described) {
    const std::string name(member.key());
    const std::string where = cat(what, ": tensor ", show_name(name));
    const json::object* entry = member.value().if_object();
    const json::value* format_name = entry != nullptr ? entry->if_contains("format") : nullptr;
    if (format_name == nullptr || !format_name->is_string()) {
      return invalid_argument(cat(where, " needs 'format' and 'shape'"));
    }
    const std::string known(format_name->get_string());
    const auto format = Format::find(known);
    if (!format) {
      return unimplemented(cat(where, " is in format ", show_name(known),
                               ", which this version does not have; quantize the model again"));
    }
    OAR_ASSIGN(const Shape shape, matrix_shape(*entry, where));
    const auto it = tensors.find(name);
    if (it == tensors.end()) return data_loss(cat(where, " is listed, but the weights have no such tensor"));
    const auto row_bytes = format->row_bytes(shape.cols());
    if (!row_bytes) {
      return invalid_argument(cat(where, ": rows of ", shape.cols(), " do not divide into blocks of ",
                                  format->block_elems(), " (", format->name(), ")"));
    }
    const Tensor& bytes = it->second;
    const bool fits = bytes.format() == Format::of(DType::kU8) && bytes.shape().rank() == 2 &&
                      bytes.shape()[0] == shape.rows() && bytes.shape()[1] == *row_bytes;
    if (!fits) {
      return data_loss(cat(where, " is ", bytes.format().name(), " ", bytes.shape().to_string(), "; ",
                           format->name(), " of ", shape.to_string(), " is u8 of ", shape.rows(), " x ",
                           *row_bytes));
    }
    OAR_ASSIGN(Tensor typed, Tensor::make(shape, *format, bytes.buffer()));
    OAR_ASSIGN(it->second, aligned(std::move(typed)));
  }
  return ok_status();
}

Status apply_oar_quantization(const json::object& config, TensorMap& tensors) {
  const json::value* v = config.if_contains("quantization_config");
  const json::object* q = v != nullptr ? v->if_object() : nullptr;
  const json::value* method = q != nullptr ? q->if_contains("quant_method") : nullptr;
  if (method == nullptr || !method->is_string() || method->get_string() != "oar") return ok_status();
  // A folder that is rotated only, in plain formats, has nothing to reinterpret.
  if (q->contains("rotation") && !q->contains("tensors") && !q->contains("version")) return ok_status();
  const json::value* version = q->if_contains("version");
  if (version == nullptr || !version->is_int64() || version->get_int64() != kOarQuantVersion) {
    return unimplemented(cat("config.json: quantization_config.version is ",
                             version != nullptr ? json::serialize(*version) : "missing",
                             ", this version reads ", kOarQuantVersion, "; quantize the model again"));
  }
  const json::value* described = q->if_contains("tensors");
  if (described == nullptr || !described->is_object()) {
    return invalid_argument("config.json: quantization_config.tensors must be an object");
  }
  return apply_formats(described->get_object(), tensors, "config.json: quantization_config");
}

}  // namespace oar
