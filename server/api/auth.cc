#include "server/api/auth.h"

#include <fstream>

#include "engine/base/format.h"

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
                                               std::string option) {
  if (key.empty() && file.empty()) return std::shared_ptr<ApiKeys>();
  std::shared_ptr<ApiKeys> keys(new ApiKeys());
  keys->own_ = key;
  keys->file_ = file;
  keys->log_ = std::move(log);
  keys->option_ = std::move(option);
  keys->looked_ = std::chrono::steady_clock::now();
  if (!file.empty()) stat(file.c_str(), &keys->seen_);
  OAR_ASSIGN(keys->keys_, keys->read_file());
  // A file that a server starts with is there to let somebody in.
  if (!file.empty() && keys->keys_->size() == (key.empty() ? 0 : 1))
    return invalid_argument(cat(keys->option_, ": ", file, " holds no key; write one per line"),
                            keys->option_);
  return keys;
}

Result<ApiKeys::Keys> ApiKeys::read_file() const {
  auto keys = std::make_shared<std::vector<std::string>>();
  if (!own_.empty()) keys->push_back(own_);
  if (file_.empty()) return Keys(keys);
  std::ifstream in(file_, std::ios::binary | std::ios::ate);
  if (!in) return not_found(cat(option_, ": ", file_, " cannot be read"));
  if (in.tellg() > kMaxFile)
    return invalid_argument(cat(option_, ": ", file_, " has more than 1 MiB"), option_);
  in.seekg(0);
  size_t number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    const size_t begin = line.find_first_not_of(" \t\r"), end = line.find_last_not_of(" \t\r");
    if (begin == std::string::npos || line[begin] == '#') continue;
    line = line.substr(begin, end - begin + 1);
    if (line.size() > kMaxKey || line.find_first_of(" \t") != std::string::npos)
      return invalid_argument(
          cat(option_, ": ", file_, ":", number, " is no key: at most 4096 characters, none of them a space"),
          option_);
    keys->push_back(std::move(line));
  }
  return Keys(keys);
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
    keys_ = std::move(*fresh);
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
bool ApiKeys::accepts(std::string_view key) {
  bool any = false;
  for (const std::string& k : *current()) any |= equal_constant_time(key, k);
  return any;
}

bool ApiKeys::accepts_bearer(std::string_view authorization) {
  bool any = false;
  for (const std::string& k : *current()) any |= bearer_matches(authorization, k);
  return any;
}

Status model_control_off() {
  return {
      StatusCode::kPermissionDenied,
      "models are not loaded or unloaded by clients here; start the server with --model-control explicit"};
}

}  // namespace oar::api
