#include "server/api/auth.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <sstream>

#include "engine/base/format.h"
#include "engine/base/nearest.h"

namespace oar::api {

bool equal_constant_time(std::string_view given, std::string_view secret) {
  unsigned difference = given.size() == secret.size() ? 0 : 1;
  for (size_t i = 0; i < given.size(); ++i) {
    difference |=
        static_cast<unsigned char>(given[i]) ^ static_cast<unsigned char>(secret[i % secret.size()]);
  }
  return difference == 0;
}

bool bearer_matches(std::string_view authorization, std::string_view secret) {
  constexpr std::string_view kScheme = "bearer";
  if (authorization.size() <= kScheme.size()) return false;
  for (size_t i = 0; i < kScheme.size(); ++i) {
    if ((authorization[i] | 0x20) != kScheme[i]) return false;
  }
  std::string_view token = authorization.substr(kScheme.size());
  if (token.front() != ' ') return false;
  while (!token.empty() && token.front() == ' ') token.remove_prefix(1);
  while (!token.empty() && token.back() == ' ') token.remove_suffix(1);
  return equal_constant_time(token, secret);
}

namespace {

constexpr std::streamsize kMaxFile = 1 << 20;
constexpr size_t kMaxKey = 4096;
constexpr std::chrono::seconds kLookAgain{1};

bool same_file(const struct stat& a, const struct stat& b) {
  return a.st_ino == b.st_ino && a.st_size == b.st_size && a.st_mtim.tv_sec == b.st_mtim.tv_sec &&
         a.st_mtim.tv_nsec == b.st_mtim.tv_nsec;
}

}  // namespace

Result<std::shared_ptr<ApiKeys>> ApiKeys::load(const std::string& key, const std::string& file, Logger log,
                                               std::string option, bool limited) {
  if (key.empty() && file.empty()) return std::shared_ptr<ApiKeys>();
  std::shared_ptr<ApiKeys> keys(new ApiKeys());
  keys->own_ = key;
  keys->file_ = file;
  keys->log_ = std::move(log);
  keys->option_ = std::move(option);
  keys->limited_ = limited;
  keys->looked_ = std::chrono::steady_clock::now();
  if (!file.empty()) stat(file.c_str(), &keys->seen_);
  OAR_ASSIGN(auto read, keys->read_file());
  keys->keys_ = keys->settle(std::move(read));
  // A file that a server starts with is there to let somebody in.
  if (!file.empty() && keys->keys_->size() == (key.empty() ? 0 : 1))
    return invalid_argument(cat(keys->option_, ": ", file, " holds no key; write one per line"),
                            keys->option_);
  return keys;
}

Result<ApiKeys::Key> ApiKeys::parse_line(std::string_view line, size_t number) const {
  constexpr const char* kWords[] = {"name", "requests-per-minute", "tokens-per-minute", "concurrency",
                                    "weight"};
  const auto wrong = [&](const std::string& why) {
    return invalid_argument(cat(option_, ": ", file_, ":", number, " ", why), option_);
  };
  Key key;
  std::istringstream words{std::string(line)};
  words >> key.secret;
  if (key.secret.size() > kMaxKey) return wrong("is no key: at most 4096 characters, none of them a space");
  for (std::string word; words >> word;) {
    const size_t at = word.find('=');
    const std::string name = word.substr(0, at), value = at == std::string::npos ? "" : word.substr(at + 1);
    if (name == "name" && !value.empty()) {
      key.name = value;
      continue;
    }
    const bool known = std::find(std::begin(kWords), std::end(kWords), name) != std::end(kWords);
    if (at == std::string::npos || !known) {
      // A second word without "=" may be the rest of a secret, which nobody is shown.
      if (at == std::string::npos)
        return wrong("is no key: none of its characters is a space, and what follows it is WORD=VALUE");
      const std::string_view near = nearest_name(name, kWords);
      return wrong(
          cat("has '", name,
              "=', which is none of name, requests-per-minute, tokens-per-minute, concurrency, weight",
              near.empty() ? "" : cat("; did you mean ", near, "?")));
    }
    double number_of = 0;
    const auto parsed = std::from_chars(value.data(), value.data() + value.size(), number_of);
    const bool whole = name != "concurrency" || number_of == std::floor(number_of);
    const bool weight = name == "weight";
    if (parsed.ec == std::errc() && weight && !(number_of >= kMinWeight && number_of <= kMaxWeight))
      return wrong(
          cat("weight=", value, " is not between ", kMinWeight, " and ", kMaxWeight, "; leave it out for 1"));
    if (parsed.ec != std::errc() || parsed.ptr != value.data() + value.size() || !(number_of > 0) ||
        !(number_of <= 1e15) || !whole) {
      return wrong(cat(name, "=", value, " is no number above 0", whole ? "" : ", and whole",
                       weight ? "; leave it out for 1" : "; leave it out for no limit"));
    }
    if (name == "requests-per-minute") key.limits.requests_per_minute = number_of;
    else if (name == "tokens-per-minute") key.limits.tokens_per_minute = number_of;
    else if (weight) key.limits.weight = number_of;
    else key.limits.concurrency = static_cast<int64_t>(number_of);
  }
  if (!limited_ && !(key.limits == TenantLimits{}))
    return wrong("has limits or a weight, which these keys do not take; leave them out");
  if (key.name.empty()) key.name = cat("key ", number);
  return key;
}

Result<std::vector<ApiKeys::Key>> ApiKeys::read_file() const {
  std::vector<Key> keys;
  if (!own_.empty()) keys.push_back({own_, "key 0", {}, nullptr});
  if (file_.empty()) return keys;
  std::ifstream in(file_, std::ios::binary | std::ios::ate);
  if (!in) return not_found(cat(option_, ": ", file_, " cannot be read"));
  if (in.tellg() > kMaxFile)
    return invalid_argument(cat(option_, ": ", file_, " has more than 1 MiB"), option_);
  in.seekg(0);
  size_t number = 0;
  std::map<std::string, TenantLimits> named;
  for (std::string line; std::getline(in, line);) {
    ++number;
    const size_t begin = line.find_first_not_of(" \t\r"), end = line.find_last_not_of(" \t\r");
    if (begin == std::string::npos || line[begin] == '#') continue;
    OAR_ASSIGN(Key key, parse_line(std::string_view(line).substr(begin, end - begin + 1), number));
    keys.push_back(std::move(key));
    const auto [it, first] = named.try_emplace(keys.back().name, keys.back().limits);
    if (!first && !(it->second == keys.back().limits)) {
      return invalid_argument(
          cat(option_, ": ", file_, ":", number, " has other limits than another key of the name '",
              keys.back().name, "'; they share them, write the same on both lines"),
          option_);
    }
  }
  return keys;
}

// Gives each key the tenant of its name. Under mutex_, but at the start.
ApiKeys::Keys ApiKeys::settle(std::vector<Key> keys) {
  for (Key& k : keys) {
    std::shared_ptr<Tenant>& tenant = tenants_[k.name];
    if (tenant == nullptr) tenant = std::make_shared<Tenant>(k.name);
    tenant->set_limits(k.limits);
    k.tenant = tenant;
  }
  return std::make_shared<const std::vector<Key>>(std::move(keys));
}

void ApiKeys::reload() {
  const std::lock_guard lock(mutex_);
  looked_ = {};
  seen_ = {};
}

ApiKeys::Keys ApiKeys::current() {
  std::lock_guard lock(mutex_);
  const auto now = std::chrono::steady_clock::now();
  if (file_.empty() || now - looked_ < kLookAgain) return keys_;
  looked_ = now;
  struct stat there = {};
  if (stat(file_.c_str(), &there) == 0 && same_file(there, seen_)) return keys_;
  auto fresh = read_file();
  if (fresh.ok()) {
    seen_ = there;
    keys_ = settle(std::move(*fresh));
    if (keys_->size() > (own_.empty() ? 0 : 1)) {
      log_(LogLevel::kInfo, cat("api keys read again: ", keys_->size()));
    } else {
      log_(LogLevel::kWarning,
           cat(option_, ": ", file_, " holds no key any more: all of its keys are revoked, ",
               own_.empty() ? "and every request that needs one is refused"
                            : "only the one of the command line is accepted"));
    }
  } else if (!same_file(there, seen_)) {
    seen_ = there;  // said once per change
    log_(LogLevel::kError, cat(fresh.status().message(), "; the keys stay as they were"));
  }
  return keys_;
}

// Every key is compared, whichever matches: the time says nothing about their order.
template <class Match>
std::shared_ptr<Tenant> ApiKeys::find_by(Match match) {
  const Keys keys = current();
  const Key* found = nullptr;
  for (const Key& k : *keys) {
    if (match(k.secret)) found = &k;
  }
  return found != nullptr ? found->tenant : nullptr;
}

std::shared_ptr<Tenant> ApiKeys::find(std::string_view key) {
  return find_by([&](const std::string& secret) { return equal_constant_time(key, secret); });
}

std::shared_ptr<Tenant> ApiKeys::named(std::string_view name) {
  const Keys keys = current();
  const auto it = std::find_if(keys->begin(), keys->end(), [&](const Key& k) { return k.name == name; });
  return it != keys->end() ? it->tenant : nullptr;
}

std::shared_ptr<Tenant> ApiKeys::find_bearer(std::string_view authorization) {
  return find_by([&](const std::string& secret) { return bearer_matches(authorization, secret); });
}

Status model_control_off() {
  return {
      StatusCode::kPermissionDenied,
      // Scripts look for Triton's sentences, of which it has one for each protocol.
      "models are not loaded or unloaded by clients here; start the server with --model-control explicit. In "
      "Triton's words: model load/unload requires --model-control-mode=explicit; explicit model load / "
      "unload "
      "is not allowed if polling is enabled"};
}

}  // namespace oar::api
