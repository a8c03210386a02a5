// Attributes of an op instance: a few named scalars, strings or lists of these, sorted by name so that two
// equal instances compare and print alike. An op reads them once when it is lowered, never per step.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "engine/base/status.h"

namespace oar {

using AttrValue = std::variant<int64_t, double, std::string, std::vector<int64_t>, std::vector<double>,
                               std::vector<std::string>>;

class Attrs {
 public:
  Attrs() = default;
  Attrs(std::initializer_list<std::pair<std::string, AttrValue>> list) {
    for (const auto& [k, v] : list) set(k, v);
  }

  void set(std::string_view name, AttrValue value) {
    auto it = lower(name);
    if (it != items_.end() && it->first == name) it->second = std::move(value);
    else items_.emplace(it, std::string(name), std::move(value));
  }
  bool has(std::string_view name) const { return find(name) != nullptr; }
  int64_t get_int(std::string_view name, int64_t fallback = 0) const { return get<int64_t>(name, fallback); }
  bool get_bool(std::string_view name, bool fallback = false) const { return get_int(name, fallback) != 0; }
  double get_float(std::string_view name, double fallback = 0) const {
    if (const AttrValue* v = find(name)) {
      if (const auto* i = std::get_if<int64_t>(v)) return static_cast<double>(*i);
    }
    return get<double>(name, fallback);
  }
  std::string get_string(std::string_view name, std::string fallback = {}) const {
    return get<std::string>(name, std::move(fallback));
  }
  std::vector<int64_t> get_ints(std::string_view name) const { return get<std::vector<int64_t>>(name, {}); }

  std::vector<double> get_floats(std::string_view name) const { return get<std::vector<double>>(name, {}); }
  std::vector<std::string> get_strings(std::string_view name) const {
    return get<std::vector<std::string>>(name, {});
  }

  bool operator==(const Attrs& o) const { return items_ == o.items_; }
  const std::vector<std::pair<std::string, AttrValue>>& items() const { return items_; }

 private:
  const AttrValue* find(std::string_view name) const {
    auto it = const_cast<Attrs*>(this)->lower(name);
    return it != items_.end() && it->first == name ? &it->second : nullptr;
  }
  std::vector<std::pair<std::string, AttrValue>>::iterator lower(std::string_view name) {
    return std::lower_bound(items_.begin(), items_.end(), name,
                            [](const auto& item, std::string_view n) { return item.first < n; });
  }
  template <class T>
  T get(std::string_view name, T fallback) const {
    const AttrValue* v = find(name);
    if (!v) return fallback;
    const T* t = std::get_if<T>(v);
    OAR_CHECK(t != nullptr, "attribute has another type");
    return *t;
  }
  std::vector<std::pair<std::string, AttrValue>> items_;
};

}  // namespace oar
