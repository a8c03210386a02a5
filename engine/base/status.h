// Status and Result<T>: how every room reports a caller's or a file's fault. The codes are gRPC's sixteen,
// one to one, so server/api needs a single table. A message names the field, the value and the remedy. A
// fault of our own that no input can reach is OAR_CHECK, which aborts with file and line.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace oar {

enum class StatusCode : uint8_t {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kNotFound = 5,
  kAlreadyExists = 6,
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kOutOfRange = 11,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,
  kUnauthenticated = 16,
};

// "INVALID_ARGUMENT" and so on; never null.
const char* status_code_name(StatusCode code);

// Value type, thread-compatible. `param` optionally names the request field at fault (OpenAI's error.param),
// `retry_after` in how many seconds the same request may succeed; 0: nobody knows. One pointer, null where
// all is well: nearly every status that a function returns is. A status that was moved from is ok.
class [[nodiscard]] Status {
 public:
  Status() = default;
  // kOk says nothing else: its texts are dropped.
  Status(StatusCode code, std::string message, std::string param = {});
  Status(const Status& other) : error_(other.error_ == nullptr ? nullptr : copy(*other.error_)) {}
  Status(Status&& other) noexcept : error_(std::exchange(other.error_, nullptr)) {}
  Status& operator=(Status other) noexcept {
    std::swap(error_, other.error_);
    return *this;
  }
  ~Status() {
    if (error_ != nullptr) destroy(error_);
  }

  bool ok() const { return error_ == nullptr; }
  StatusCode code() const { return error_ == nullptr ? StatusCode::kOk : error_->code; }
  const std::string& message() const { return error().message; }
  const std::string& param() const { return error().param; }
  double retry_after() const { return error_ == nullptr ? 0 : error_->retry_after; }
  Status with_retry_after(double seconds) && {
    if (error_ != nullptr) error_->retry_after = static_cast<float>(seconds);
    return std::move(*this);
  }
  // "INVALID_ARGUMENT: message".
  std::string to_string() const;

 private:
  struct Error {
    StatusCode code = StatusCode::kOk;
    float retry_after = 0;
    std::string message;
    std::string param;
  };
  static Error* copy(const Error& error);
  static void destroy(Error* error);
  const Error& error() const;  // one with empty texts where all is well

  Error* error_ = nullptr;
};

inline Status ok_status() { return {}; }
Status invalid_argument(std::string m, std::string param = {});
Status not_found(std::string m);
Status resource_exhausted(std::string m);
Status unimplemented(std::string m);
Status unavailable(std::string m);
Status internal_error(std::string m);
// A file whose bytes contradict themselves.
Status data_loss(std::string m);

namespace detail {
[[noreturn]] void check_failed(const char* expr, const char* file, int line, std::string_view why);
}

// Our own bug, unreachable by any input: abort with a location. Active in every build type.
#define OAR_CHECK(cond, ...)                                                                   \
  do {                                                                                         \
    if (!(cond)) [[unlikely]]                                                                  \
      ::oar::detail::check_failed(#cond, __FILE__, __LINE__, ::std::string_view{__VA_ARGS__}); \
  } while (0)

// A T or the Status that explains its absence.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}        // NOLINT: implicit by design
  Result(Status status) : state_(std::in_place_index<1>, std::move(status)) {  // NOLINT: implicit by design
    OAR_CHECK(!std::get<1>(state_).ok(), "Result built from an ok Status");
  }
  bool ok() const { return state_.index() == 0; }
  const Status& status() const {
    static const Status kOkStatus;
    return ok() ? kOkStatus : std::get<1>(state_);
  }
  T& value() & { return get(); }
  const T& value() const& { return const_cast<Result*>(this)->get(); }
  T&& value() && { return std::move(get()); }
  T& operator*() & { return get(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(get()); }
  T* operator->() { return &get(); }
  const T* operator->() const { return &value(); }

 private:
  T& get() {
    OAR_CHECK(ok(), status().message());
    return std::get<0>(state_);
  }
  std::variant<T, Status> state_;
};

#define OAR_CONCAT_(a, b) a##b
#define OAR_CONCAT(a, b) OAR_CONCAT_(a, b)
// Returns from the enclosing function when `expr` (a Status) is an error.
#define OAR_RETURN_IF_ERROR(expr)                                   \
  do {                                                              \
    if (::oar::Status oar_s_ = (expr); !oar_s_.ok()) return oar_s_; \
  } while (0)
// OAR_ASSIGN(auto x, f()) unwraps a Result or returns its Status.
#define OAR_ASSIGN(lhs, expr) OAR_ASSIGN_(OAR_CONCAT(oar_r_, __LINE__), lhs, expr)
#define OAR_ASSIGN_(tmp, lhs, expr)   \
  auto tmp = (expr);                  \
  if (!tmp.ok()) return tmp.status(); \
  lhs = std::move(tmp).value()

}  // namespace oar
