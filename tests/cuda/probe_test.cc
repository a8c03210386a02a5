// What a device gives when one thing alone is asked of it (./dev gpu): copies, its matrix units, decode
// attention over each cache, products of prompts beside cuBLASLt's; and how cuDNN describes it. Each prints
// lines of a name and a number. On the emulated device sizes are small, and the numbers say nothing.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>

#include "kernels/cuda/matmul_codes.h"
#include "kernels/cuda/matmul_wgmma.h"
#include "kernels/cuda/matmul_wgmma_codes.h"
#include "kernels/kv_quant.h"
#include "tests/cuda/device_libraries.h"
#include "tests/cuda/on_device.h"
#include "tests/cuda/rounding_kernels.h"

using namespace oar;
using namespace oar_test;

namespace {

// Memory of the device, of equal bytes.
class DeviceBytes {
 public:
  explicit DeviceBytes(size_t bytes, int value = 0) : size_(bytes) {
    REQUIRE(cudaMalloc(&data_, bytes + 1) == cudaSuccess);
    REQUIRE(cudaMemset(data_, value, bytes) == cudaSuccess);
  }
  ~DeviceBytes() { cudaFree(data_); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;
  char* data() { return static_cast<char*>(data_); }
  size_t size() const { return size_; }

 private:
  size_t size_;
  void* data_ = nullptr;
};

// Seconds of one launch: `times` are put on the default stream behind each other, the fastest of some rounds.
template <class Launch>
double seconds_of(int times, const Launch& launch) {
  const int rounds = is_emulated() ? 1 : 12;
  if (is_emulated()) times = 1;
  double best = std::numeric_limits<double>::infinity();
  for (int round = 0; round < rounds; ++round) {
    REQUIRE(cudaStreamSynchronize(nullptr) == cudaSuccess);
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < times; ++i) launch();
    REQUIRE(cudaStreamSynchronize(nullptr) == cudaSuccess);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    best = std::min(best, took.count() / times);
  }
  return best;
}

void print(const std::string& name, double value) { std::printf("%s %.6g\n", name.c_str(), value); }

}  // namespace

TEST_CASE("cuda: how fast the device copies its own memory", "[.probe][rates]") {
  OAR_SKIP_WITHOUT_DEVICE();
  size_t free = 0, total = 0;
  REQUIRE(cudaMemGetInfo(&free, &total) == cudaSuccess);
  const size_t bytes =
      total > (size_t{16} << 30) ? size_t{2} << 30 : size_t{16} << 20;  // far beyond any cache
  DeviceCopy<char> a(std::vector<char>(bytes, '\1')), b(std::vector<char>(bytes, '\2'));
  const double seconds = seconds_of(1, [&] {
    REQUIRE(cudaMemcpyAsync(b.data(), a.data(), bytes, cudaMemcpyDeviceToDevice, nullptr) == cudaSuccess);
  });
  CHECK(b.host() == a.host());
  print("copy_gb_per_second", 2e-9 * static_cast<double>(bytes) / seconds);  // read and written
}

TEST_CASE("cuda: how fast page-locked memory comes to the device", "[.probe][rates]") {
  OAR_SKIP_WITHOUT_DEVICE();
  const size_t bytes = is_emulated() ? size_t{1} << 20 : size_t{1} << 30;
  void* host = nullptr;
  REQUIRE(cudaMallocHost(&host, bytes) == cudaSuccess);
  std::memset(host, 5, bytes);
  DeviceBytes to(bytes);
  const double seconds = seconds_of(1, [&] {
    REQUIRE(cudaMemcpyAsync(to.data(), host, bytes, cudaMemcpyHostToDevice, nullptr) == cudaSuccess);
  });
  char last = 0;
  REQUIRE(cudaMemcpy(&last, to.data() + bytes - 1, 1, cudaMemcpyDeviceToHost) == cudaSuccess);
  CHECK(last == 5);
  REQUIRE(cudaFreeHost(host) == cudaSuccess);
  print("upload_gb_per_second", 1e-9 * static_cast<double>(bytes) / seconds);
}

TEST_CASE("cuda: how fast the matrix units multiply", "[.probe][rates]") {
  OAR_SKIP_WITHOUT_DEVICE();
  constexpr int kGroups = 2, kThreads = 128;
  cudaDeviceProp properties;
  REQUIRE(cudaGetDeviceProperties(&properties, 0) == cudaSuccess);
  const int blocks = 2 * std::max(properties.multiProcessorCount, 1), rounds = is_emulated() ? 1 : 4000;
  for (const bool bf16 : {true, false}) {
    DeviceArray sums(nothing_yet(blocks * kGroups * kThreads));
    const double seconds = seconds_of(
        1, [&] { REQUIRE(launch_repeated(sums.data(), blocks, kGroups, rounds, bf16) == cudaSuccess); });
    const std::vector<float> said = sums.host();
    for (size_t i = 0; i < said.size(); ++i) {
      INFO("thread " << i);
      REQUIRE(std::isfinite(said[i]));
      REQUIRE(said[i] == said[i % kThreads]);
    }
    print(bf16 ? "peak_bf16_tflops" : "peak_e4m3_tflops",
          1e-12 * repeated_operations(blocks, kGroups, rounds, bf16) / seconds);
  }
}

namespace {

// A step that decodes with the 8B shape's heads: one query behind each of some long contexts.
struct Decode {
  static constexpr int64_t kHeads = 32, kKvHeads = 8, kDim = 128, kPage = 64;
  const int64_t sequences = is_emulated() ? 2 : 64, context = is_emulated() ? 150 : 8192;
  const int64_t pages = (context + kPage - 1) / kPage;
  DeviceArray q{random_values(static_cast<size_t>(sequences * kHeads * kDim), Values::kNormal, 3)};
  DeviceArray out{nothing_yet(sequences * kHeads * kDim)};
  DeviceCopy<int32_t> starts{counted(sequences + 1, 1)}, contexts, tables{counted(sequences * pages, 7919)};

  Decode() : contexts(std::vector<int32_t>(static_cast<size_t>(sequences), static_cast<int32_t>(context))) {}

  // 0 .. n - 1, a step apart: pages of a sequence lie apart, each once.
  static std::vector<int32_t> counted(int64_t n, int64_t step) {
    std::vector<int32_t> out;
    for (int64_t i = 0; i < n; ++i) out.push_back(static_cast<int32_t>(i * step % n));
    return out;
  }

  PagedAttentionArgs args(const KvShape& shape, const void* pool) {
    PagedAttentionArgs a;
    a.out = out.data();
    a.q = q.data();
    a.pool = pool;
    a.block_tables = tables.data();
    a.seq_start = starts.data();
    a.context_len = contexts.data();
    a.T = a.B = sequences;
    a.H = kHeads;
    a.ldq = a.ldo = kHeads * kDim;
    a.max_blocks = pages;
    a.shape = shape;
    a.scale = 1.f / std::sqrt(static_cast<float>(kDim));
    return a;
  }

  // `bytes`: of the cache, which is read once.
  void time(const std::string& name, const cuda::DeviceKernel* kernel, const void* args, size_t bytes) {
    INFO(name);
    REQUIRE(kernel != nullptr);
    DeviceBytes scratch(kernel->scratch != nullptr ? kernel->scratch(args) : 0);
    const double seconds = seconds_of(10, [&] {
      const cuda::CudaStatus status = kernel->launch(args, scratch.data(), nullptr);
      INFO(status.message());
      REQUIRE(status.ok());
    });
    for (const float x : out.host()) REQUIRE(std::isfinite(x));
    print("attention_" + name + "_microseconds", 1e6 * seconds);
    print("attention_" + name + "_gb_per_second", 1e-9 * static_cast<double>(bytes) / seconds);
  }
};

constexpr int kSmall = 0x11;  // of every byte: as numbers, codes and scales small and finite

void time_quantized(const char* name, KvCode code) {
  Decode d;
  const QuantKvShape shape(code, code, Decode::kPage, Decode::kKvHeads, Decode::kDim);
  const KvShape of_open = open_kv_shape(shape);
  const auto count = static_cast<size_t>(d.sequences), full = count * static_cast<size_t>(d.pages - 1);
  const size_t each = quant_kv_block_bytes(shape), open_bytes = kv_block_bytes(of_open),
               sink_bytes = kv_block_bytes(sink_kv_shape(shape));
  DeviceBytes pool(count * static_cast<size_t>(d.pages) * each, kSmall), open(count * open_bytes, kSmall),
      sinks(count * sink_bytes, kSmall);
  std::vector<int32_t> open_table(count * static_cast<size_t>(d.pages), 0), sink_table;
  for (size_t s = 0; s < count; ++s) {
    open_table[(s + 1) * static_cast<size_t>(d.pages) - 1] = static_cast<int32_t>(s);
    sink_table.push_back(static_cast<int32_t>(s));
  }
  DeviceCopy<int32_t> open_tables(open_table), sink_tables(sink_table);
  QuantPagedAttentionArgs a;
  a.common = d.args(of_open, pool.data());
  a.open = open.data();
  a.sinks = sinks.data();
  a.open_tables = open_tables.data();
  a.sink_tables = sink_tables.data();
  a.open_max_blocks = d.pages;
  a.sink_max_blocks = 1;
  a.shape = shape;
  const char* codes = kv_code_name(code);
  d.time(name, cuda::find_device_kernel(KernelFamily::kQuantPagedAttention, "bf16", codes, codes), &a,
         full * each + count * (open_bytes + sink_bytes));
}

}  // namespace

TEST_CASE("cuda: how fast attention reads a long cache, in each tier", "[.probe][attention]") {
  OAR_SKIP_WITHOUT_DEVICE();
  {
    Decode d;
    const KvShape shape(DType::kBF16, Decode::kPage, Decode::kKvHeads, Decode::kDim);
    DeviceBytes pool(static_cast<size_t>(d.sequences * d.pages) * kv_block_bytes(shape), kSmall);
    const PagedAttentionArgs a = d.args(shape, pool.data());
    d.time("bf16", cuda::find_device_kernel(KernelFamily::kPagedAttention, "bf16"), &a, pool.size());
  }
  time_quantized("int8", KvCode::kInt8);
  time_quantized("fp8", KvCode::kFp8);
  time_quantized("int4", KvCode::kInt4);
}

namespace {

// A product of a prompt: rows of K times n outputs, the larger of an 8B layer's.
struct ProductShape {
  int64_t rows = is_emulated() ? 64 : 2048 * 8, n = is_emulated() ? 128 : 14336,
          K = is_emulated() ? 256 : 4096;
  double tflops(double seconds) const {
    return 2e-12 * static_cast<double>(rows) * static_cast<double>(n) * static_cast<double>(K) / seconds;
  }
};

// Eighths from -1 to 1, which bf16 and e4m3 hold: sums of their products are exact in f32.
std::vector<float> eighths(int64_t count, int64_t step) {
  std::vector<float> out(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) out[static_cast<size_t>(i)] = static_cast<float>(i * step % 17 - 8) / 8;
  return out;
}
// As the library has them: the same numbers in fewer bits.
std::vector<uint16_t> as_halves(const std::vector<float>& values) {
  std::vector<uint16_t> out;
  out.reserve(values.size());
  for (const float v : values) out.push_back(to_bf16(v).bits);
  return out;
}
std::vector<uint8_t> as_codes(const std::vector<float>& values) {
  std::vector<uint8_t> out;
  out.reserve(values.size());
  for (const float v : values) out.push_back(to_e4m3(v).bits);
  return out;
}

// The weight as our kernels read it: rows of the format, packed where it is.
std::vector<char> weight_of(const std::vector<float>& values, const ProductShape& p, const char* name) {
  const Format format = *Format::find(name);
  const auto stride = static_cast<size_t>(format.stride(p.K));
  std::vector<char> rows(static_cast<size_t>(p.n) * stride);
  for (int64_t r = 0; r < p.n; ++r)
    format.encode_row(values.data() + r * p.K, p.K, rows.data() + static_cast<size_t>(r) * stride);
  const uint64_t bytes = cuda::packed_bytes(name, p.n, p.K);
  if (bytes == 0) return rows;
  std::vector<char> packed(bytes);
  cuda::pack_weight(name, p.n, p.K, packed.data(), rows.data());
  return packed;
}

std::vector<float> first_rows(DeviceBytes& out, const ProductShape& p) {
  std::vector<float> rows(static_cast<size_t>(4 * p.n));
  REQUIRE(cudaMemcpy(rows.data(), out.data(), rows.size() * sizeof(float), cudaMemcpyDeviceToHost) ==
          cudaSuccess);
  return rows;
}

// By warp groups, the rounding of x among it.
template <class Products>
double time_groups(const Products& products, const char* name, const ProductShape& p,
                   std::vector<float>* said) {
  DeviceArray x(eighths(p.rows * p.K, 5));
  DeviceCopy<char> w(weight_of(eighths(p.n * p.K, 3), p, name));
  DeviceBytes out(static_cast<size_t>(p.rows * p.n) * sizeof(float), 0xff);
  const MatmulSegment segment{w.data(), nullptr, p.n, 0};
  MatmulArgs a;
  a.out = reinterpret_cast<float*>(out.data());
  a.x = x.data();
  a.segments = &segment;
  a.num_segments = 1;
  a.T = p.rows;
  a.K = a.ldx = p.K;
  a.ldo = p.n;
  DeviceBytes scratch(products.scratch(a));
  const double seconds = seconds_of(3, [&] {
    const cuda::LibraryStatus ran = products.run(a, scratch.data(), nullptr);
    INFO(ran.what);
    REQUIRE(ran.ok());
  });
  *said = first_rows(out, p);
  return seconds;
}

// cuBLASLt alone: both operands are in its own type already. Empty `why`: it did.
template <class Element>
double time_library(cuda::CublasLt& library, const cuda::LtProduct& product, const ProductShape& p,
                    const std::vector<Element>& rows, const std::vector<Element>& weight,
                    std::vector<float>* said, std::string* why) {
  constexpr uint64_t kWorkspace = uint64_t{64} << 20;
  DeviceCopy<Element> x(rows), w(weight);
  DeviceArray one(std::vector<float>{1.f});
  DeviceBytes out(static_cast<size_t>(p.rows * p.n) * sizeof(float), 0xff);
  cuda::LtPlan plan;
  if (const auto refused = library.prepare(product, p.rows, kWorkspace, &plan); !refused.ok()) {
    *why = refused.what;
    return 0;
  }
  DeviceBytes workspace(plan.workspace_bytes());
  cuda::LtOperands o;
  o.out = out.data();
  o.x = x.data();
  o.w = w.data();
  if (product.scale != cuda::LtScale::kNone) o.x_scale = o.w_scale = one.data();
  o.workspace = workspace.data();
  o.rows = p.rows;
  const double seconds = seconds_of(3, [&] {
    const cuda::LibraryStatus ran = library.run(plan, o, nullptr);
    INFO(ran.what);
    REQUIRE(ran.ok());
  });
  *said = first_rows(out, p);
  return seconds;
}

}  // namespace

TEST_CASE("cuda: how fast products of prompts are beside cuBLASLt alone", "[.probe][products]") {
  OAR_SKIP_WITHOUT_DEVICE();
  const ProductShape p;
  std::vector<float> bf16, codes;
  print("product_bf16_tflops", p.tflops(time_groups(cuda::WarpGroupProducts(), "bf16", p, &bf16)));
  print("product_e4m3_tflops",
        p.tflops(time_groups(cuda::WarpGroupCodes("e4m3_g128"), "e4m3_g128", p, &codes)));
  // Rounded to e4m3 under scales, each factor by 2^-4 at most.
  for (size_t i = 0; i < bf16.size(); ++i)
    REQUIRE(std::fabs(codes[i] - bf16[i]) <= static_cast<float>(p.K) * (0.125f + 0x1p-9f));

  cuda::CublasLtApi api;
  std::string why;
  std::unique_ptr<cuda::CublasLt> library;
  if (find_cublas_lt(&api, &why)) library = cuda::CublasLt::make(api, &why);
  if (library == nullptr) OAR_SKIP("no cuBLASLt: " + why);
  const std::vector<float> rows = eighths(p.rows * p.K, 5), weight = eighths(p.n * p.K, 3);
  std::vector<float> said;
  cuda::LtProduct product{cuda::LtTypes::kBf16, cuda::LtScale::kNone, false, p.n, p.K, p.K, p.n};
  const double halves = time_library(*library, product, p, as_halves(rows), as_halves(weight), &said, &why);
  INFO(why);
  REQUIRE(halves > 0);
  CHECK(said == bf16);
  print("product_bf16_library_tflops", p.tflops(halves));
  // One scale of all: the fastest that the library has.
  product.types = cuda::LtTypes::kE4m3;
  product.scale = cuda::LtScale::kTensor;
  const double bytes = time_library(*library, product, p, as_codes(rows), as_codes(weight), &said, &why);
  INFO(why);
  REQUIRE(bytes > 0);
  for (size_t i = 0; i < bf16.size(); ++i)
    REQUIRE(std::fabs(said[i] - bf16[i]) <= static_cast<float>(p.K) * 0x1p-9f);
  print("product_e4m3_library_tflops", p.tflops(bytes));
}

TEST_CASE("cuda: how cuDNN describes the device", "[.probe][cudnn]") {
  OAR_SKIP_WITHOUT_DEVICE();
  cuda::CudnnApi api;
  std::string why, json;
  if (!find_cudnn(&api, &why)) OAR_SKIP("no cuDNN: " + why);
  const std::unique_ptr<cuda::Cudnn> library = cuda::Cudnn::make(api, &why);
  INFO(why);
  REQUIRE(library != nullptr);
  const cuda::LibraryStatus status = library->describe_device(&json);
  INFO(status.what);
  REQUIRE(status.ok());
  REQUIRE(json.starts_with('{'));
  std::ranges::replace(json, '\n', ' ');
  std::printf("cudnn_device %s\n", json.c_str());
}
