// The edge of the C interface: turns Status and exceptions into codes and the thread's last error, copies
// structures of callers compiled against older or newer headers, and fills callers' buffers.
#pragma once

#include <cstring>
#include <exception>
#include <new>
#include <span>
#include <string_view>

#if __has_include(<cxxabi.h>)
#include <cxxabi.h>
#endif

#include "engine/base/format.h"
#include "engine/base/log.h"
#include "engine/base/status.h"
#include "engine/capi/oar.h"

namespace oar::capi {

// Remembers the error for oar_last_error() of this thread (an ok Status clears it) and returns its code.
oar_status finish_call(const Status& status) noexcept;
// The same for what came as an exception, without allocating.
oar_status finish_call_out_of_memory() noexcept;
const char* last_error() noexcept;
const char* last_error_param() noexcept;

// Runs `body`, which returns a Status. Nothing passes but the unwinding of a cancelled thread.
template <class F>
oar_status call(F&& body) {
  try {
    return finish_call(body());
  } catch (abi::__forced_unwind&) { throw; } catch (const std::bad_alloc&) {
    return finish_call_out_of_memory();
  } catch (const std::exception& e) {
    return finish_call(internal_error(cat("unexpected: ", e.what())));
  } catch (...) { return finish_call(internal_error("unexpected exception")); }
}

inline Status null_argument(const char* name) {
  return invalid_argument(cat(name, " is NULL; pass an address"), name);
}

// The caller's callback as the engine's; NULL: none.
inline Logger logger(oar_log_callback log, void* user) {
  if (log == nullptr) return {};
  return {[log, user](LogLevel level, std::string_view message) {
    log(static_cast<oar_log_level>(level), std::string(message).c_str(), user);
  }};
}

// The number of threads that a predictor or an encoder is asked for.
inline Status check_threads(int32_t threads) {
  if (threads >= 0 && threads <= 4096) return ok_status();
  return invalid_argument(cat("threads is ", threads, "; give 0 (all) to 4096"), "threads");
}

// Sizes beyond this are no structure of ours, but memory that nobody initialized.
inline constexpr size_t kMaxStruct = 4096;

// Over the defaults in `out`, the fields that the caller's structure has. A caller with a newer header may
// use fields we do not know only with the value zero.
template <class T>
Status read_struct(const T* in, const char* name, T& out) {
  const size_t size = in->struct_size;
  if (size < sizeof in->struct_size || size > kMaxStruct)
    return invalid_argument(
        cat(name, ".struct_size is ", size, "; fill the structure with oar_", name, "_init()"), name);
  const auto* bytes = reinterpret_cast<const unsigned char*>(in);
  for (size_t i = sizeof(T); i < size; ++i)
    if (bytes[i] != 0)
      return unimplemented(cat(name, " sets a field that this version of the library (", oar_version(),
                               ") does not know; update the library"));
  std::memcpy(&out, in, std::min(size, sizeof(T)));
  return ok_status();
}

// Into a structure of the caller's `size`.
template <class T>
Status write_struct(const T& value, const char* name, T* out, size_t size) {
  if (out == nullptr) return null_argument(name);
  if (size < sizeof(uint32_t) || size > kMaxStruct)
    return invalid_argument(cat("size is ", size, "; pass sizeof *", name), "size");
  std::memset(static_cast<void*>(out), 0, size);
  std::memcpy(static_cast<void*>(out), &value, std::min(size, sizeof(T)));
  return ok_status();
}

// The defaults of a structure, for its oar_..._init().
template <class T>
oar_status init_struct(T defaults, const char* name, T* out, size_t size) {
  return call([&] {
    defaults.struct_size = static_cast<uint32_t>(size);
    return write_struct(defaults, name, out, size);
  });
}

// Text and a zero byte into the caller's buffer; the two-call convention of oar_detokenize().
Status write_text(std::string_view text, char* buffer, size_t capacity, size_t* length);

}  // namespace oar::capi
