// Each key of each architecture's config.json with values that it cannot have, or that contradict its
// tensors: an error that names the key, or one that it contradicts, or a tensor, or a model that can be
// built; never a crash, nor more memory than a tiny model's, whatever sizes a config claims. Two keys at
// once, keys under other names, lists cut short, and what lies within rope scaling and the text part of a
// larger model.
#include <algorithm>
#include <fstream>
#include <random>
#include <string>

#include "engine/base/format.h"
#include "engine/base/json.h"
#include "engine/loader/text_part.h"
#include "engine/models/model.h"
#include "tests/support/catch.h"
#include "tests/support/sample.h"
#include "tests/support/tiny_weights.h"

namespace {
using namespace oar_test;
namespace json = oar::json;

const json::array kWrong = {nullptr,
                            -1,
                            0,
                            1,
                            3,
                            1000003,
                            1 << 30,
                            -0.5,
                            3.5,
                            1e300,
                            "word",
                            "",
                            true,
                            false,
                            json::array{},
                            json::array{-1, "a", nullptr},
                            json::array{1 << 30},
                            json::object{},
                            json::object{{"rope_type", "yarn"}, {"factor", -1}}};

// Pages of this process in memory, in KiB: now ("VmRSS:"), or the most since the last reset_peak ("VmHWM:").
int64_t resident(const std::string& field) {
  std::ifstream status("/proc/self/status");
  std::string word;
  int64_t kib = 0;
  while (status >> word)
    if (word == field) status >> kib;
  return kib;
}
void reset_peak() { std::ofstream("/proc/self/clear_refs") << "5"; }

// Keys that others are held against, and those others: an error may name these instead.
struct Held {
  std::string_view key, others;
};
constexpr Held kHeld[] = {
    {"hidden_size", "num_attention_heads num_heads mamba_n_heads mamba_num_heads"},
    {"n_group", "topk_group"},
    {"n_routed_experts", "num_experts_per_tok"},
    {"num_attention_heads", "num_key_value_heads num_global_key_value_heads"},
    {"num_experts", "num_experts_per_tok"},
    {"num_hidden_layers", "layer_types num_kv_shared_layers hybrid_override_pattern full_attn_idxs"},
    {"num_local_experts", "num_experts_per_tok"},
    {"moe_num_experts", "num_experts_per_tok moe_norm_min"},
    {"layer_types", "num_kv_shared_layers sliding_window sliding_window_pattern"},
    {"sliding_window", "layer_types"},
    {"qk_nope_head_dim", "qk_rope_head_dim"},
    {"vocab_size", "vocab_size_per_layer_input"},
};

bool quotes(const std::string& message, std::string_view key) {
  return message.find(oar::cat("'", key, "'")) != message.npos;
}

// Whether the message names the key or one of its others.
bool names(const std::string& message, std::string_view key) {
  if (quotes(message, key)) return true;
  if (key == "model_type") return message.starts_with("model_type ");
  for (const Held& h : kHeld) {
    if (h.key != key) continue;
    for (size_t at = 0; at <= h.others.size();) {
      const size_t end = std::min(h.others.find(' ', at), h.others.size());
      if (quotes(message, h.others.substr(at, end - at))) return true;
      at = end + 1;
    }
  }
  return false;
}

// Reads and builds; the message of the refusal, and whether it was the config alone that was refused.
struct Outcome {
  bool read = false, built = false;
  std::string message, unknown;
};
Outcome outcome_of(const json::object& config, const oar::Checkpoint* checkpoint) {
  Outcome out;
  const auto read = oar::read_model_config(config);
  out.read = read.ok();
  if (!out.read) out.message = read.status().message();
  else out.unknown = read->unknown_keys;
  if (!out.read || checkpoint == nullptr) return out;
  const auto model = oar::build_model(*checkpoint, *read, {});
  out.built = model.ok();
  if (!out.built) out.message = model.status().message();
  return out;
}
bool told(const std::string& message) {
  return message.find('\'') != message.npos || message.find("config.json") != message.npos;
}

// One architecture after the other, with its config and a checkpoint of it.
void each_type(unsigned nth, const auto& run) {
  Sample models(nth);
  for (const std::string& name : tiny_golden_names()) {
    if (!models.take()) continue;
    const TinyGolden golden = load_tiny_golden(name);
    const auto checkpoint = oar::load_checkpoint(write_tiny_model(golden, TinyDtype::bf16));
    REQUIRE_OK(checkpoint);
    run(name, json::parse(golden.config).as_object(), *checkpoint);
  }
}

}  // namespace

TEST_CASE("configs with impossible values: every key of every architecture", "[types]") {
  size_t refused = 0, built = 0, turn = 0, next = 0;
  each_type(7, [&](const std::string& name, const json::object& base, const oar::Checkpoint& checkpoint) {
    for (const auto& member : base) {
      const std::string key(member.key());
      for (const json::value& wrong : kWrong) {
        // A fifth of the values for each key, others for the next and in the next architecture.
        if (next++ % 5 != 0) continue;
        json::object config = base;
        config[key] = wrong;
        // Each graph takes a millisecond.
        const Outcome o = outcome_of(config, turn++ % 2 == 0 ? &checkpoint : nullptr);
        INFO(name << ": " << key << " is " << json::serialize(wrong) << ": " << o.message);
        refused += !o.read, built += o.built;
        if (!o.read) CHECK(names(o.message, key));
        else if (!o.message.empty()) CHECK(told(o.message));
      }
      json::object without = base;
      without.erase(key);
      const Outcome o = outcome_of(without, nullptr);
      INFO(name << " without " << key << ": " << o.message);
      if (!o.read) CHECK(names(o.message, key));
    }
  });
  CHECK(refused > (kSlow ? 50 : 500));
  CHECK(built > (kSlow ? 5 : 50));
}

TEST_CASE("a key under another name is told, and says nothing", "[types]") {
  size_t renamed = 0;
  each_type(7, [&](const std::string& name, const json::object& base, const oar::Checkpoint&) {
    for (const auto& member : base) {
      const std::string key(member.key()), other = key + "_of_old";
      json::object without = base;
      without.erase(key);
      json::object config = without;
      config[other] = member.value();
      const Outcome o = outcome_of(config, nullptr), lacks = outcome_of(without, nullptr);
      INFO(name << ": " << key << ": " << o.message);
      CHECK(o.read == lacks.read);
      CHECK(o.message == lacks.message);
      if (o.read) CHECK_THAT(o.unknown, Contains(other));
      ++renamed;
    }
  });
  CHECK(renamed > (kSlow ? 100 : 1000));
}

// Lists with an entry for each layer, frequency, part or limit.
TEST_CASE("lists that are cut short, or too long, are refused by name", "[types]") {
  constexpr std::string_view kFixed[] = {"layer_types",     "layers_block_type", "no_rope_layers",
                                         "mlp_multipliers", "ssm_multipliers",   "time_step_limit",
                                         "mlp_layer_types"};
  size_t cut = 0;
  each_type(3, [&](const std::string& name, const json::object& base, const oar::Checkpoint& checkpoint) {
    for (const auto& member : base) {
      const std::string key(member.key());
      const bool factors = member.value().is_object() && member.value().get_object().contains("long_factor");
      if (!factors && std::ranges::find(kFixed, key) == std::end(kFixed)) continue;
      for (const bool longer : {false, true}) {
        if (longer && key == "no_rope_layers") continue;  // of which the first are taken
        json::object config = base;
        const auto change = [&](json::array& list) {
          if (longer) list.push_back(list.back());
          else list.pop_back();
        };
        if (factors) {  // one of the two is used
          for (const char* list : {"long_factor", "short_factor"})
            change(config[key].as_object()[list].as_array());
        } else {
          change(config[key].as_array());
        }
        const Outcome o = outcome_of(config, &checkpoint);
        INFO(name << ": " << key << (longer ? " grown" : " cut") << ": " << o.message);
        CHECK_FALSE(o.built);
        CHECK((factors ? quotes(o.message, "long_factor") || quotes(o.message, "short_factor")
                       : quotes(o.message, key)));
        ++cut;
      }
    }
  });
  CHECK(cut > (kSlow ? 5 : 30));
}

TEST_CASE("a config.json that ends early is refused by the file's name", "[types]") {
  const TinyGolden golden = load_tiny_golden("gemma3");
  const std::string folder = write_tiny_model(golden, TinyDtype::bf16);
  for (size_t size = 0; size + 2 < golden.config.size(); size += 37) {
    std::ofstream(folder + "/config.json", std::ios::binary) << golden.config.substr(0, size);
    const auto loaded = oar::load_checkpoint(folder);
    INFO(size);
    REQUIRE_FALSE(loaded.ok());
    CHECK_THAT(std::string(loaded.status().message()), Contains("config.json"));
  }
}

// What lies in an object within: an error names that key, or the object.
TEST_CASE("impossible values within rope scaling are refused by name", "[types]") {
  size_t refused = 0, next = 0;
  const auto check = [&](const std::string& name, const json::object& config,
                         const oar::Checkpoint& checkpoint, const std::string& outer, const std::string& key,
                         const json::value& wrong) {
    const Outcome o = outcome_of(config, &checkpoint);
    INFO(name << ": " << outer << "." << key << " is " << json::serialize(wrong) << ": " << o.message);
    refused += !o.built;
    bool named = names(o.message, key) || names(o.message, outer);
    if (wrong.is_object())  // or what lies in it
      for (const auto& member : wrong.get_object()) named = named || quotes(o.message, member.key());
    if (!o.built) CHECK(named);
  };
  each_type(3, [&](const std::string& name, const json::object& base, const oar::Checkpoint& checkpoint) {
    for (const auto& member : base) {
      if (!member.value().is_object() || member.key() == "quantization_config") continue;
      const std::string outer(member.key());
      for (const auto& inner : member.value().get_object()) {
        const std::string key(inner.key());
        for (const json::value& wrong : kWrong) {
          if (next++ % 3 != 0) continue;
          json::object config = base;
          config[outer].as_object()[key] = wrong;
          check(name, config, checkpoint, outer, key, wrong);
        }
        if (!inner.value().is_object()) continue;  // of one type of layers
        for (const auto& deep : inner.value().get_object()) {
          for (const json::value& wrong : kWrong) {
            if (next++ % 3 != 0) continue;
            json::object config = base;
            config[outer].as_object()[key].as_object()[deep.key()] = wrong;
            check(name, config, checkpoint, outer, std::string(deep.key()), wrong);
          }
        }
      }
    }
  });
  CHECK(refused > (kSlow ? 20 : 200));
}

// A larger model's: its text part is read as it would be alone.
TEST_CASE("a text part gives what it gives alone, and what is no text part is told", "[types]") {
  size_t next = 0;
  each_type(7, [&](const std::string& name, const json::object& base, const oar::Checkpoint&) {
    const auto whole = [&](json::value text) {
      json::object outer{{"model_type", "seeing_model"}, {"text_config", std::move(text)}};
      oar::TensorMap none;
      oar::keep_text_part(outer, none, nullptr);
      return outcome_of(outer, nullptr);
    };
    for (const auto& member : base) {
      for (const json::value& wrong : kWrong) {
        if (next++ % 29 != 0 || member.key() == "model_type") continue;
        json::object config = base;
        config[member.key()] = wrong;
        const Outcome alone = outcome_of(config, nullptr), within = whole(config);
        INFO(name << ": " << std::string(member.key()) << " is " << json::serialize(wrong));
        CHECK(alone.read == within.read);
        CHECK(alone.message == within.message);
        CHECK(alone.unknown == within.unknown);
      }
    }
    for (const json::value& wrong : kWrong) CHECK(names(whole(wrong).message, "seeing_model"));
  });
}

TEST_CASE("two keys with impossible values at once: one of them is named", "[types]") {
  std::mt19937 rng(3);
  size_t turn = 0, refused = 0;
  each_type(7, [&](const std::string& name, const json::object& base, const oar::Checkpoint& checkpoint) {
    for (size_t pair = 0; pair < 4 * base.size(); ++pair) {
      json::object config = base;
      std::string keys[2];
      for (std::string& key : keys) {
        key = std::string((base.begin() + static_cast<std::ptrdiff_t>(rng() % base.size()))->key());
        config[key] = kWrong[rng() % kWrong.size()];
      }
      const Outcome o = outcome_of(config, turn++ % 4 == 0 ? &checkpoint : nullptr);
      INFO(name << ": " << keys[0] << " is " << json::serialize(config[keys[0]]) << ", " << keys[1] << " is "
                << json::serialize(config[keys[1]]) << ": " << o.message);
      refused += !o.read;
      if (!o.read) CHECK((names(o.message, keys[0]) || names(o.message, keys[1])));
      else if (!o.message.empty()) CHECK(told(o.message));
    }
  });
  CHECK(refused > (kSlow ? 100 : 2000));
}

TEST_CASE("configs that claim more than the file has take no memory for it", "[types]") {
  each_type(11, [](const std::string& name, const json::object& base, const oar::Checkpoint& checkpoint) {
    for (const char* key : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "head_dim",
                            "num_local_experts", "num_experts", "n_routed_experts", "moe_intermediate_size",
                            "num_attention_heads", "max_position_embeddings", "kv_lora_rank", "mamba_d_state",
                            "state_size", "ssm_state_size", "linear_value_head_dim", "conv_L_cache"}) {
      json::object config = base;
      if (!config.contains(key)) continue;
      for (const int64_t most : {int64_t{4096}, int64_t{1} << 14, int64_t{1} << 20}) {
        config[key] = most;
        INFO(name << ": " << key << " is " << most);
        reset_peak();
        const int64_t before = resident("VmRSS:");
        const auto read = oar::read_model_config(config);
        if (read.ok()) (void)oar::build_model(checkpoint, *read, {});
        // A sanitizer keeps what is freed.
        if (!kSlow) CHECK(resident("VmHWM:") - before < 64 << 10);
      }
    }
  });
}
