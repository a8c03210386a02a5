// Convolutions and pools as cuDNN's operation graphs: by the strict fake against our own kernels, what no
// graph says and what the fake refuses, what it says of a device, and plans that are written and read.
#include "kernels/cuda/libraries/cudnn.h"

#include <algorithm>

#include "kernels/cuda/emulation/libraries.h"
#include "tests/cuda/on_device.h"

using namespace oar;
using namespace oar::cuda;
using namespace oar_test;

namespace {

constexpr uint64_t kMostWorkspace = 1 << 20;

WindowShape window(int64_t n, int64_t side, int64_t taps, int64_t stride, int64_t pad, int64_t dilation = 1) {
  WindowShape s;
  s.N = n;
  s.H = side;
  s.W = side + 1;
  s.KH = taps;
  s.KW = taps;
  s.stride_h = s.stride_w = stride;
  s.dilation_h = s.dilation_w = dilation;
  s.pad_top = s.pad_left = s.pad_bottom = s.pad_right = pad;
  s.OH = (s.H + 2 * pad - dilation * (taps - 1) - 1) / stride + 1;
  s.OW = (s.W + 2 * pad - dilation * (taps - 1) - 1) / stride + 1;
  return s;
}
std::vector<float> normal_values(int64_t n, uint32_t seed) {
  return random_values(static_cast<size_t>(n), Values::kNormal, seed);
}
double largest(const std::vector<float>& v) {
  double most = 0;
  for (float x : v) most = std::max(most, static_cast<double>(std::fabs(x)));
  return most;
}

std::unique_ptr<Cudnn> fake_library() {
  std::string why;
  auto made = Cudnn::make(emulation::fake_cudnn(), &why);
  INFO(why);
  REQUIRE(made != nullptr);
  return made;
}

// Runs the family's arguments, whose pointers are set, by a graph into args.out.
template <class Args>
std::string run_graph(const Args& a, const ImageOperands& operands) {
  const auto library = fake_library();
  LibraryStatus status;
  const auto plan = library->prepare(operation_of(a), kMostWorkspace, &status);
  if (plan == nullptr) return status.what;
  DeviceCopy<char> workspace(std::vector<char>(plan->workspace_bytes()));
  ImageOperands o = operands;
  o.workspace = workspace.data();
  return library->run(*plan, o, nullptr).what;
}

template <class Args>
void check_conv(KernelFamily family, Args a, int64_t M, int64_t filters, int64_t taps) {
  const WindowShape& s = a.window;
  const int64_t results = s.N * s.OH * s.OW * M;
  INFO("window " << s.KH << " stride " << s.stride_h << " dilation " << s.dilation_h << " pad " << s.pad_top
                 << " C " << a.C << " M " << M << " epilogue " << static_cast<int>(a.epilogue) << " bias "
                 << (a.bias != nullptr) << " residual " << (a.residual != nullptr));
  const std::vector<float> hx = normal_values(s.N * s.H * s.W * a.C, 1), hw = normal_values(filters, 2),
                           hr = normal_values(results, 3), hb = normal_values(M, 4);
  DeviceArray x(hx), w(hw), residual(hr), bias(hb), own(nothing_yet(results)), out(nothing_yet(results));
  a.x = x.data();
  a.w = w.data();
  if (a.bias != nullptr) a.bias = bias.data();
  if (a.residual != nullptr) a.residual = residual.data();
  a.out = own.data();
  launch_on_device(family, "f32", &a);
  ImageOperands o;
  o.out = out.data();
  o.x = a.x;
  o.w = a.w;
  o.bias = a.bias;
  o.residual = a.residual;
  CHECK(run_graph(a, o) == "");
  // Our own kernel's sums of `taps` products in f32 and its activation; the fake's are double. No activation
  // of the list grows faster than 1.2 times, hard swish apart, whose slope is below 2 within its bounds.
  const double size = largest(hx) * largest(hw) * static_cast<double>(taps) + largest(hr) + largest(hb);
  const double bound = 2 * (static_cast<double>(taps) + 24) * kUnit * size;
  check_close(out.host(), own.host(), [&](size_t) { return bound; });
}

const float kSomewhere = 0;  // for "there is one"

struct Activation {
  Epilogue kind;
  float alpha, beta;
};
constexpr Activation kActivations[] = {{Epilogue::kNone, 0, 0},
                                       {Epilogue::kClamp, 0, INFINITY},
                                       {Epilogue::kClamp, -0.5f, 6},
                                       {Epilogue::kSigmoid, 0, 0},
                                       {Epilogue::kSilu, 0, 0},
                                       {Epilogue::kHardSigmoid, 0.2f, 0.5f},
                                       {Epilogue::kHardSwish, 1 / 6.f, 0.5f},
                                       {Epilogue::kLeakyRelu, 0.1f, 0},
                                       {Epilogue::kTanh, 0, 0},
                                       {Epilogue::kGelu, 0, 0},
                                       {Epilogue::kGeluTanh, 0, 0}};

ConvArgs conv_of(const WindowShape& s, int64_t C, int64_t M, int64_t groups) {
  ConvArgs a;
  a.window = s;
  a.C = a.ldx = C;
  a.M = a.ldo = M;
  a.groups = groups;
  a.panel = 1;
  return a;
}

}  // namespace

TEST_CASE("cuda libraries: convolutions and what follows them, one graph each, as our own kernels") {
  for (const Activation& act : kActivations) {
    for (const int flags : {0, 1, 2, 3}) {
      ConvArgs a = conv_of(window(2, 5, 3, 2, 1), 4, 8, 1);
      a.epilogue = act.kind;
      a.alpha = act.alpha;
      a.beta = act.beta;
      a.bias = flags % 2 != 0 ? &kSomewhere : nullptr;
      a.residual = flags / 2 != 0 ? &kSomewhere : nullptr;
      check_conv(KernelFamily::kConv, a, 8, 8 * 9 * 4, 9 * 4);
    }
  }
  check_conv(KernelFamily::kConv, conv_of(window(1, 6, 3, 1, 2, 2), 6, 9, 3), 9, 9 * 9 * 2, 9 * 2);
  check_conv(KernelFamily::kConv, conv_of(window(3, 4, 1, 1, 0), 12, 4, 1), 4, 4 * 12, 12);
  for (const int64_t taps : {3, 5}) {
    DepthwiseArgs d;
    d.window = window(2, 7, taps, 2, taps / 2);
    d.C = 8;
    d.bias = &kSomewhere;
    d.epilogue = Epilogue::kHardSwish;
    d.alpha = 1 / 6.f;
    d.beta = 0.5f;
    check_conv(KernelFamily::kDepthwise, d, 8, taps * taps * 8, taps * taps);
  }
}

TEST_CASE("cuda libraries: pools, one graph each, as our own kernel") {
  for (const PoolOp op : {PoolOp::kMax, PoolOp::kAverage}) {
    for (const int count_pads : {0, 1}) {
      PoolArgs a;
      a.window = window(2, 7, 3, 2, 1);
      a.window.W = a.window.H = 7;
      a.window.OW = a.window.OH;
      a.C = 8;
      a.op = op;
      a.count_pads = count_pads;
      DeviceArray x(normal_values(2 * 7 * 7 * 8, 1)), own(nothing_yet(2 * 16 * 8)),
          out(nothing_yet(2 * 16 * 8));
      a.x = x.data();
      a.out = own.data();
      launch_on_device(KernelFamily::kPool, "f32", &a);
      ImageOperands o;
      o.out = out.data();
      o.x = a.x;
      CHECK(run_graph(a, o) == "");
      check_close(out.host(), own.host(), [&](size_t) { return 16 * kUnit * 6; });
    }
  }
}

TEST_CASE("cuda libraries: what no graph says, and what cuDNN's fake refuses") {
  const ConvArgs good = conv_of(window(1, 4, 3, 1, 1), 4, 4, 1);
  DeviceArray x(normal_values(4 * 5 * 4, 1)), w(normal_values(4 * 9 * 4, 2)), out(nothing_yet(4 * 5 * 4));
  ImageOperands o;
  o.out = out.data();
  o.x = x.data();
  o.w = w.data();
  CHECK(run_graph(good, o) == "");
  const auto spoilt = [&](const auto& spoil) {
    ConvArgs a = good;
    ImageOperands its = o;
    spoil(a, its);
    return run_graph(a, its);
  };
  const std::string no = "no graph of cuDNN: ", apart = no + "rows that are apart, or images by channels";
  CHECK(spoilt([](ConvArgs& a, ImageOperands&) { a.planar = 1; }) == apart);
  CHECK(spoilt([](ConvArgs& a, ImageOperands&) { a.ldx = 8; }) == apart);
  CHECK(spoilt([](ConvArgs& a, ImageOperands&) { a.out_row = 64; }) == apart);
  CHECK(spoilt([](ConvArgs& a, ImageOperands&) { a.window.N = 0; }) == no + "an operation of nothing");
  CHECK(spoilt([](ConvArgs& a, ImageOperands&) { a.window.OH = 5; }) ==
        no + "windows that reach beyond the padding");
  PoolArgs pool;
  pool.window = window(1, 4, 2, 1, 0, 2);
  pool.C = 4;
  CHECK(run_graph(pool, o) == no + "a pool with dilation");
  const std::string bad = "cudnnBackendExecute: CUDNN_STATUS_BAD_PARAM";
  CHECK(spoilt([](ConvArgs&, ImageOperands& p) { p.x += 1; }) == bad);  // alignment
  CHECK(spoilt([](ConvArgs&, ImageOperands& p) { p.w += 4; }) == bad);  // ends behind its allocation
  CHECK(spoilt([](ConvArgs&, ImageOperands& p) { p.out = nullptr; }) == bad);
  CHECK(spoilt([](ConvArgs& a, ImageOperands&) { a.bias = &kSomewhere; }) == bad);  // there is none
  const auto library = fake_library();
  LibraryStatus status;
  CHECK(library->prepare(operation_of(good), 100, &status) == nullptr);
  CHECK(status.what == "cuDNN has no engine that computes this in f32 within the workspace");
  const auto plan = library->prepare(operation_of(good), kMostWorkspace, &status);
  REQUIRE(plan != nullptr);
  CHECK(library->run(*plan, o, nullptr).what == bad);  // no workspace
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  CHECK(library->prepare(operation_of(good), kMostWorkspace, &status) == nullptr);  // it would load kernels
  CHECK(cudaStreamEndCapture(stream, &graph) == cudaErrorStreamCaptureInvalidated);
  cudaStreamDestroy(stream);
}

TEST_CASE("cuda libraries: cuDNN's fake describes the device as JSON") {
  std::string json;
  const LibraryStatus status = fake_library()->describe_device(&json);
  INFO(status.what);
  REQUIRE(status.ok());
  CHECK(json == R"({"deviceName":"emulated CUDA device"})");
  // An attribute that the library lacks, as one that is too old does.
  CudnnApi old = emulation::fake_cudnn();
  old.BackendGetAttribute = [](auto...) { return 3000; };
  std::string why;
  const auto library = Cudnn::make(old, &why);
  REQUIRE(library != nullptr);
  CHECK_THAT(library->describe_device(&json).what,
             Contains("BackendGetAttribute(description of the device): CUDNN_STATUS_NOT_SUPPORTED"));
}

TEST_CASE(
    "cuda libraries: plans made by a device's description, written, read and run as those of the device") {
  std::string json, why;
  const auto library = fake_library();
  REQUIRE(library->describe_device(&json).ok());
  const auto described = Cudnn::for_described(emulation::fake_cudnn(), json, &why);
  REQUIRE(described != nullptr);
  CHECK(Cudnn::for_described(emulation::fake_cudnn(), "{}", &why) == nullptr);
  CHECK(why == "cudnnBackendFinalize(device): CUDNN_STATUS_BAD_PARAM");
  const ConvArgs conv = conv_of(window(1, 4, 3, 1, 1), 4, 4, 1);
  const ImageOperation operation = operation_of(conv);
  DeviceArray x(normal_values(4 * 5 * 4, 1)), w(normal_values(4 * 9 * 4, 2)), out(nothing_yet(4 * 5 * 4)),
      want(nothing_yet(4 * 5 * 4));
  ImageOperands o;
  o.out = want.data();
  o.x = x.data();
  o.w = w.data();
  CHECK(run_graph(conv, o) == "");
  LibraryStatus status;
  std::string plan_json;
  {
    const auto made = described->prepare(operation, kMostWorkspace, &status);
    REQUIRE(made != nullptr);
    REQUIRE(described->write(*made, &plan_json).ok());
    // No device, no run.
    const std::string none = "a plan runs on a device, not for one that is only described";
    CHECK(described->run(*made, o, nullptr).what == none);
    CHECK(described->read(operation, plan_json, &status) == nullptr);
    CHECK(status.what == none);
  }
  const auto plan = library->read(operation, plan_json, &status);
  INFO(status.what);
  REQUIRE(plan != nullptr);
  DeviceCopy<char> workspace(std::vector<char>(plan->workspace_bytes()));
  REQUIRE(plan->workspace_bytes() > 0);
  o.workspace = workspace.data();
  o.out = out.data();
  CHECK(library->run(*plan, o, nullptr).what == "");
  CHECK(out.host() == want.host());
  CHECK(library->read(operation, R"({"plan":1000000})", &status) == nullptr);
  CHECK(status.what == "cudnnBackendFinalize: CUDNN_STATUS_BAD_PARAM");
}
