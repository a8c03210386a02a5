#include "tests/models/gguf_fixture.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/loader/gguf_model.h"
#include "engine/models/model.h"
#include "tests/support/catch.h"

namespace oar_test {
namespace json = oar::json;

GgufNames::GgufNames(const std::string& golden) {
  const json::value all = json::parse(read_file(source_path("tests/golden/gguf_names.json")));
  architecture_ = all.at(golden).at("architecture").as_string();
  tensors_ = all.at(golden).at("tensors").as_object();
}

std::vector<std::string> GgufNames::of(const std::string& name) const {
  std::string any = name, layer;
  for (const std::string_view level : {".layers.", "transformer.h."}) {
    const size_t at = name.find(level);
    if (at == name.npos) continue;
    const size_t begin = at + level.size(), size = name.find('.', begin) - begin;
    layer = name.substr(begin, size);
    any.replace(begin, size, "N");
  }
  INFO(name);
  REQUIRE(tensors_.contains(any));
  std::vector<std::string> out;
  for (const json::value& v : tensors_.at(any).as_array()) {
    out.emplace_back(v.as_string());
    if (out.back().starts_with("blk.N.")) out.back().replace(4, 1, layer);
  }
  return out;
}

namespace {

// What a key becomes: numbers that it cannot be, lists, texts, and itself under another name.
std::vector<GgufBuilder::Key> changes_of(const GgufBuilder::Key& key) {
  using oar::GgufType;
  GgufBuilder b;
  for (const uint32_t v : {0u, 1u, 3u, 1u << 30, std::numeric_limits<uint32_t>::max()}) b.u32(key.name, v);
  b.scalar(key.name, GgufType::kI32, int32_t{-1});
  b.scalar(key.name, GgufType::kU64, std::numeric_limits<uint64_t>::max());
  for (const float v : {0.f, -1.f, 3.5f, 1e30f, std::nanf(""), std::numeric_limits<float>::infinity()})
    b.f32(key.name, v);
  for (const uint8_t v : {uint8_t{0}, uint8_t{1}}) b.scalar(key.name, GgufType::kBool, v);
  b.str(key.name, "").str(key.name, "word").strings(key.name, {"a", "b"});
  b.array(key.name, GgufType::kU32, std::vector<uint32_t>{});
  b.array(key.name, GgufType::kI32, std::vector<int32_t>{-1, 1 << 30, 0});
  b.array(key.name, GgufType::kBool, std::vector<uint8_t>{1});
  b.raw(key.name + "s", key.type, key.payload);
  return b.keys;
}

// Keys that others are held against, and those others.
struct HeldMetadata {
  std::string_view key, others;
};
constexpr HeldMetadata kHeldMetadata[] = {{"block_count", "attention.head_count_kv"},
                                          {"block_count", "attention.recurrent_layers"},
                                          {"expert_count", "expert_used_count"},
                                          {"rope.scaling.factor", "rope.scaling.type"}};

bool names_metadata(const std::string& message, std::string_view key) {
  const std::string_view own = key.substr(key.find('.') + 1);  // without the architecture
  if (message.find(own) != message.npos) return true;
  for (const HeldMetadata& h : kHeldMetadata)
    if (own == h.key && message.find(h.others) != message.npos) return true;
  return false;
}

}  // namespace

void check_changed_metadata(const GgufBuilder& file, const std::string& name, size_t& turn) {
  constexpr size_t kOne = kSlow ? 67 : 1;  // every change, or some: prime to their number
  const auto check = [&](const GgufBuilder& changed, const std::string& key) {
    const auto parsed = oar::parse_gguf(exact_buffer(changed.bytes()), "changed.gguf");
    REQUIRE_OK(parsed);
    INFO(name << ", " << key);
    const auto config = oar::gguf_config(*parsed);
    if (!config.ok()) {
      const std::string message(config.status().message());
      INFO(message);
      CHECK(names_metadata(message, key));
      return;
    }
    const auto read = oar::read_model_config(*config);
    if (!read.ok()) {
      CHECK_THAT(std::string(read.status().message()), Contains("'"));
      return;
    }
    oar::Checkpoint checkpoint;
    for (const auto& [theirs, tensor] : parsed->tensors)
      checkpoint.tensors.emplace(oar::hugging_face_name(name, theirs), tensor);
    const auto model = oar::build_model(checkpoint, *read, {});
    if (!model.ok())
      CHECK_THAT(std::string(model.status().message()), Contains("'") || Contains("config.json"));
  };
  for (size_t k = 0; k < file.keys.size(); ++k) {
    const GgufBuilder::Key& key = file.keys[k];
    for (const GgufBuilder::Key& other : changes_of(key)) {
      if (turn++ % kOne != 0) continue;
      GgufBuilder changed = file;
      changed.keys[k] = other;
      check(changed, key.name);
    }
    if (turn++ % kOne != 0) continue;
    GgufBuilder without = file;
    without.keys.erase(without.keys.begin() + static_cast<int64_t>(k));
    check(without, key.name);
  }
}

}  // namespace oar_test
