// Reads the keys of a config.json and remembers which: finish() then judges the others. A checkpoint is a
// stranger's file, so every value is checked before a shape is made of it.
//
// What a key means where it is absent belongs to each architecture's own file, after the configuration
// classes of Hugging Face transformers 5.
#pragma once

#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/json.h"
#include "engine/base/status.h"

namespace oar {

class ConfigReader {
 public:
  using Keys = std::initializer_list<const char*>;
  explicit ConfigReader(const json::object& config) : config_(config) {}

  // The first of `keys` that is there, else `absent`; `null` is what a JSON null means, else `absent` too.
  // INVALID_ARGUMENT names the key: a wrong type, a value out of [least, most], or nothing to fall back on.
  Result<int64_t> integer(Keys keys, int64_t least, int64_t most, std::optional<int64_t> absent,
                          std::optional<int64_t> null = std::nullopt);
  Result<double> number(Keys keys, double absent, std::optional<double> null = std::nullopt);
  Result<bool> boolean(const char* key, bool absent);
  Result<std::string> text(Keys keys, const char* absent);
  // How the config spells what these keys name: the one that is read, for messages.
  std::string_view spelling(Keys keys);
  // A value of any type; null when there is none.
  const json::value* value(const char* key);
  // A key that says what the architecture is anyway: UNIMPLEMENTED names it where its value is another.
  Status expect(const char* key, const json::value& wanted);
  // Keys, separated by spaces, that have no effect in this architecture.
  void without_effect(std::string_view keys) { harmless_.push_back(keys); }

  // Of the keys that nobody asked for: those that are known to change a computation must have the value that
  // leaves it as it is, else UNIMPLEMENTED names the key. Those that nobody knows are no part of the
  // architecture as published; their names, for the log.
  Result<std::string> finish(std::string_view model_type) const;
  // The keys that finish() would refuse or name.
  std::vector<std::string> unread() const;

 private:
  const json::value* find(Keys keys, const char** key);
  // What a key is that nobody may have asked for; of kMatters `neutral` is what would change nothing.
  enum class Unread { kNothing, kMatters, kUnknown };
  Unread unread(std::string_view key, const json::value& value, const char** neutral) const;

  const json::object& config_;
  std::set<std::string, std::less<>> asked_;
  std::vector<std::string_view> harmless_;
};

// Whether `word` is one of a list with spaces between.
bool is_word_of(std::string_view list, std::string_view word);

// Dropout that a config.json names: "attention_dropout 1E-1, hidden_dropout_prob 1E-1".
std::string dropout_in(const json::object& config);

// What the log says of finish()'s names.
std::string unknown_keys_notice(std::string_view model_type, std::string_view names);

}  // namespace oar
