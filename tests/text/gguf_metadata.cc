// Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3, little endian).
#include "tests/text/gguf_metadata.h"

#include <cstring>
#include <map>

namespace oar_test {
namespace {

struct Reader {
  const std::string& bytes;
  size_t pos = 0;
  bool ok = true;

  template <class T>
  T read() {
    T v{};
    if (!ok || bytes.size() - pos < sizeof v) {
      ok = false;
      return v;
    }
    std::memcpy(&v, bytes.data() + pos, sizeof v);
    pos += sizeof v;
    return v;
  }
  std::string string() {
    const auto n = read<uint64_t>();
    if (!ok || n > bytes.size() - pos) {
      ok = false;
      return {};
    }
    std::string s = bytes.substr(pos, n);
    pos += n;
    return s;
  }
};

// Value types: 0 u8, 1 i8, 2 u16, 3 i16, 4 u32, 5 i32, 6 f32, 7 bool, 8 string, 9 array, 10 u64, 11 i64, 12
// f64.
struct Value {
  uint64_t integer = 0;
  float number = 0;
  std::string text;
  std::vector<Value> list;
};

Value read_value(Reader& r, uint32_t type) {
  Value v;
  switch (type) {
    case 0:
    case 1:
    case 7: v.integer = r.read<uint8_t>(); break;
    case 2:
    case 3: v.integer = r.read<uint16_t>(); break;
    case 4:
    case 5: v.integer = r.read<uint32_t>(); break;
    case 6: v.number = r.read<float>(); break;
    case 8: v.text = r.string(); break;
    case 9: {
      const auto element = r.read<uint32_t>();
      const auto count = r.read<uint64_t>();
      for (uint64_t i = 0; i < count && r.ok; ++i) v.list.push_back(read_value(r, element));
      break;
    }
    case 10:
    case 11:
    case 12: v.integer = r.read<uint64_t>(); break;
    default: r.ok = false;
  }
  return v;
}

}  // namespace

oar::Result<oar::GgufVocab> read_gguf_vocab(const std::string& bytes) {
  Reader r{bytes};
  if (r.read<uint32_t>() != 0x46554747 || r.read<uint32_t>() < 2)
    return oar::data_loss("no GGUF file of version 2 or 3");
  r.read<uint64_t>();  // tensors
  const auto keys = r.read<uint64_t>();
  std::map<std::string, Value> all;
  for (uint64_t i = 0; i < keys && r.ok; ++i) {
    const std::string key = r.string();
    all[key] = read_value(r, r.read<uint32_t>());
  }
  if (!r.ok) return oar::data_loss("the GGUF metadata is truncated");
  oar::GgufVocab v;
  const auto get = [&](const std::string& name) -> const Value* {
    const auto it = all.find("tokenizer.ggml." + name);
    return it == all.end() ? nullptr : &it->second;
  };
  if (const Value* x = get("model")) v.model = x->text;
  if (const Value* x = get("pre")) v.pre = x->text;
  if (const Value* x = get("tokens"))
    for (const Value& e : x->list) v.tokens.push_back(e.text);
  if (const Value* x = get("scores"))
    for (const Value& e : x->list) v.scores.push_back(e.number);
  if (const Value* x = get("token_type"))
    for (const Value& e : x->list) v.types.push_back(static_cast<int32_t>(e.integer));
  if (const Value* x = get("merges"))
    for (const Value& e : x->list) v.merges.push_back(e.text);
  const auto id = [&](const std::string& name) -> std::optional<uint32_t> {
    const Value* x = get(name + "_token_id");
    return x ? std::optional(static_cast<uint32_t>(x->integer)) : std::nullopt;
  };
  const auto flag = [&](const std::string& name) -> std::optional<bool> {
    const Value* x = get(name);
    return x ? std::optional(x->integer != 0) : std::nullopt;
  };
  v.bos_id = id("bos"), v.eos_id = id("eos"), v.unknown_id = id("unknown"), v.separator_id = id("seperator");
  v.padding_id = id("padding"), v.cls_id = id("cls"), v.mask_id = id("mask");
  v.add_bos = flag("add_bos_token"), v.add_eos = flag("add_eos_token"),
  v.add_space_prefix = flag("add_space_prefix");
  return v;
}

}  // namespace oar_test
