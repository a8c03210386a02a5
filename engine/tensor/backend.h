// Backend: the device seam. Everything above it (graph, runtime) sees memory it may not touch, copies it must
// ask for and kernels it orders; nothing above may assume that device memory is host memory. The CPU is one
// implementation; a GPU is another with the same calls.
//
// Threads: one thread at a time per Backend, the release of its buffers included. Work is ordered: launch()
// and the copies happen in call order, and synchronize() waits for all of them.
//
// Errors: RESOURCE_EXHAUSTED of allocate() changes nothing. Any other error of a device stays: every later
// call returns it again, and nothing the device computed may be believed.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "engine/base/log.h"
#include "engine/tensor/tensor.h"
#include "kernels/matmul.h"
#include "kernels/thread_pool.h"

namespace oar {

// What a launch takes, computed from sizes and measured by nobody (oar_plugin_cost).
struct LaunchCost {
  double bytes = 0;              // of memory, read and written, each once
  double matrix_operations = 0;  // multiplications and additions by matrix units
  double operations = 0;         // the same by other units
  double seconds = 0;
  int64_t launches = 1;  // that it adds to those of the calls before: 0 where it is part of one of these
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual const char* name() const = 0;  // "cpu.avx512vnni"
  virtual MemoryKind memory() const = 0;
  // The error that stays, once there was one.
  virtual Status fault() const { return ok_status(); }

  // 64-byte aligned, uninitialized.
  virtual Result<Buffer> allocate(uint64_t bytes) = 0;
  // Bytes that allocate() may still give, as far as the device knows; nullopt: the host's memory.
  virtual Result<std::optional<uint64_t>> available_memory() { return std::optional<uint64_t>(); }
  // upload(): the host's bytes may change once it has returned. download(): they are there after
  // synchronize(). copy(): ranges do not overlap.
  virtual Status upload(void* device, const void* host, uint64_t bytes) = 0;
  virtual Status download(void* host, const void* device, uint64_t bytes) = 0;
  virtual Status copy(void* to, const void* from, uint64_t bytes) = 0;
  virtual Status synchronize() = 0;

  // A place in the order of work: set() puts it behind all that was ordered so far, wait() waits until that
  // is done and no longer.
  struct Mark {
    virtual ~Mark() = default;
  };
  virtual Result<std::unique_ptr<Mark>> make_mark() { return std::make_unique<Mark>(); }
  virtual Status set(Mark&) { return ok_status(); }
  virtual Status wait(Mark&) { return synchronize(); }
  // Host memory that download() fills while the caller goes on, where the device can do that.
  virtual Result<Buffer> allocate_landing(uint64_t bytes) { return Buffer::allocate(bytes); }

  // The best kernel for a key; null when there is none.
  virtual const Kernel* find_kernel(const KernelKey& key) const = 0;
  // How products' kernels (matmul, grouped or gated) of a weight format read a matrix [n, K]: packed into so
  // many bytes, or 0 for rows as they are stored.
  virtual Result<uint64_t> packed_bytes(Format format, int64_t n, int64_t K) const = 0;
  // Whether pack() takes rows of format `from`. Of rows as they are stored: whether they can be made of
  // these.
  virtual bool packs_from(Format format, Format from, int64_t n, int64_t K) const = 0;
  // Packs a matrix on the host: packed_bytes() to `to`, 64-byte aligned, from its rows in format `from`.
  virtual Status pack(Format format, Format from, int64_t n, int64_t K, void* to, const void* rows) const = 0;
  // Output channels in a panel of packed convolution filters (kernels/conv.h).
  virtual int64_t filter_panel() const = 0;
  virtual int workers() const = 0;
  // How a launch with these arguments divides, and the scratch it needs.
  virtual Status plan(const Kernel& kernel, const void* args, KernelPlan* out) {
    kernel.plan(args, workers(), out);
    return ok_status();
  }
  // Makes launch() allocation-free for kernels that need up to this much scratch per worker.
  virtual void reserve_worker_scratch(size_t bytes) = 0;
  // `next`: a launch to come that reads weights, which the CPU may fetch while it waits.
  virtual Status launch(const Kernel& kernel, const void* args, const KernelPlan& plan, void* shared_scratch,
                        const NextKernel& next = {}) = 0;
  // What the device computes that a launch takes, where its queries see `context` tokens. Follows no device
  // pointer. Nullopt: it cannot tell.
  virtual std::optional<LaunchCost> cost(const Kernel&, const void* /*args*/, int64_t /*context*/) const {
    return std::nullopt;
  }
  // Host threads for work at load time.
  virtual ThreadPool& host_pool() = 0;
  // The CPU beside the device, which runs what the device has no kernel for; of the CPU: itself.
  virtual Backend& host() { return *this; }

  // Recording, where captures(): between begin and end, launches and copy() are recorded instead of run; a
  // replay does them again, with the same pointers and whatever the memory then holds. A capture may outlive
  // the Backend.
  using Capture = std::shared_ptr<const void>;
  virtual bool captures() const { return false; }
  virtual Status begin_capture() { return unimplemented("no capture"); }
  virtual Result<Capture> end_capture() { return unimplemented("no capture"); }
  virtual Status replay(const Capture&) { return unimplemented("no capture"); }
};

// The CPU, at the given instruction-set level and below. The pool may be shared with other backends.
std::unique_ptr<Backend> make_cpu_backend(std::shared_ptr<ThreadPool> pool, Isa isa);

// The processor's best kernels on the calling thread alone, for work that has no pool: constants folded while
// a model is loaded, single ops. Any thread.
Backend& calling_thread_backend();

// A device of a plug-in (plugin.h): "NAME", "NAME:INDEX" or a path, as plugin_table.h says; `host` is the CPU
// backend beside it. NOT_FOUND, INVALID_ARGUMENT (field "device") or UNAVAILABLE say what is wrong.
Result<std::unique_ptr<Backend>> make_plugin_backend(const std::string& device, std::unique_ptr<Backend> host,
                                                     const Logger& log);

// The processor at `isa` where `device` is empty or "cpu", else a device of a plug-in with it beside.
Result<std::shared_ptr<Backend>> make_backend(const std::string& device, std::shared_ptr<ThreadPool> pool,
                                              Isa isa, const Logger& log);

}  // namespace oar
