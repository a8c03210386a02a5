#include "kernels/cuda/libraries/cudnn.h"

#include <algorithm>
#include <limits>

namespace oar::cuda {
namespace {

using namespace cudnn;

// Names of tensors in a graph.
constexpr int64_t kX = 1, kW = 2, kBias = 3, kResidual = 4, kOut = 5, kAlpha = 6, kBeta = 7,
                  kFirstBetween = 100;
constexpr int kDims = 4;  // images: N, C, H, W
constexpr int64_t kAlignment = 16;

LibraryStatus said(const CudnnApi& api, CudnnResult code, const char* call) {
  if (code == 0) return {};
  return {code, std::string("cudnn") + call + ": " + api.GetErrorString(code)};
}

bool scaled(Epilogue e) { return e == Epilogue::kHardSigmoid || e == Epilogue::kHardSwish; }

ImageOperation with_window(const WindowShape& window, int64_t C, int64_t M) {
  ImageOperation o;
  o.window = window;
  o.C = C;
  o.M = M;
  return o;
}

}  // namespace

#define OAR_DNN(...) \
  if (LibraryStatus failed = (__VA_ARGS__); !failed.ok()) return failed

bool load_cudnn(CudnnApi* api, std::string* why) {
  void* library = open_library({"libcudnn.so.9", "libcudnn.so"}, why);
  if (library == nullptr) return false;
#define OAR_FIND(name) find_function(library, "cudnn" #name, &api->name, why)
  return OAR_FIND(Create) && OAR_FIND(Destroy) && OAR_FIND(SetStream) && OAR_FIND(GetErrorString) &&
         OAR_FIND(BackendCreateDescriptor) && OAR_FIND(BackendDestroyDescriptor) &&
         OAR_FIND(BackendFinalize) && OAR_FIND(BackendSetAttribute) && OAR_FIND(BackendGetAttribute) &&
         OAR_FIND(BackendExecute);
#undef OAR_FIND
}

ImageOperation operation_of(const ConvArgs& a) {
  ImageOperation o = with_window(a.window, a.C, a.M);
  // What no graph says is left to refusal(): the sizes are spoilt.
  const bool dense = a.planar == 0 && a.ldx == a.C && a.ldo == a.M && a.panel == 1 &&
                     (a.out_row == 0 || a.out_row == a.window.OW * a.ldo);
  o.groups = dense ? a.groups : 0;
  o.bias = a.bias != nullptr;
  o.residual = a.residual != nullptr;
  o.epilogue = a.epilogue;
  o.alpha = a.alpha;
  o.beta = a.beta;
  return o;
}
ImageOperation operation_of(const DepthwiseArgs& a) {
  ImageOperation o = with_window(a.window, a.C, a.C);
  o.groups = a.C;
  o.taps_first = true;
  o.bias = a.bias != nullptr;
  o.residual = a.residual != nullptr;
  o.epilogue = a.epilogue;
  o.alpha = a.alpha;
  o.beta = a.beta;
  return o;
}
ImageOperation operation_of(const PoolArgs& a) {
  ImageOperation o = with_window(a.window, a.C, a.C);
  o.pool = true;
  o.op = a.op;
  o.count_pads = a.count_pads != 0;
  return o;
}

const char* ImageOperation::refusal() const {
  const WindowShape& s = window;
  if (epilogue > Epilogue::kGeluTanh) return "an activation of the processor alone";
  if (groups <= 0 || C % groups != 0 || M % groups != 0) return "rows that are apart, or images by channels";
  if (std::min({s.N, s.H, s.W, s.OH, s.OW, s.KH, s.KW, C, M}) <= 0) return "an operation of nothing";
  // Pads behind the last window do not count; the library wants those that give the size.
  const auto spans = [](int64_t in, int64_t out, int64_t taps, int64_t stride, int64_t dilation,
                        int64_t before) {
    return (out - 1) * stride + (taps - 1) * dilation + 1 - before - in;
  };
  if (spans(s.H, s.OH, s.KH, s.stride_h, s.dilation_h, s.pad_top) > s.pad_bottom ||
      spans(s.W, s.OW, s.KW, s.stride_w, s.dilation_w, s.pad_left) > s.pad_right)
    return "windows that reach beyond the padding";
  if (pool && (s.dilation_h != 1 || s.dilation_w != 1)) return "a pool with dilation";
  if (pool && op == PoolOp::kAverage && count_pads &&
      (spans(s.H, s.OH, s.KH, s.stride_h, 1, s.pad_top) != s.pad_bottom ||
       spans(s.W, s.OW, s.KW, s.stride_w, 1, s.pad_left) != s.pad_right))
    return "an average whose last windows are cut";
  return nullptr;
}

// ---- graphs

ImagePlan::~ImagePlan() {
  while (!all_.empty()) {
    api_.BackendDestroyDescriptor(all_.back());
    all_.pop_back();
  }
}

LibraryStatus ImagePlan::make(int type, CudnnDescriptor* descriptor) {
  OAR_DNN(said(api_, api_.BackendCreateDescriptor(type, descriptor), "BackendCreateDescriptor"));
  all_.push_back(*descriptor);
  return {};
}
LibraryStatus ImagePlan::set(CudnnDescriptor d, int name, int type, int64_t count, const void* value) {
  const CudnnResult code = api_.BackendSetAttribute(d, name, type, count, value);
  if (code == 0) return {};
  return said(api_, code, ("BackendSetAttribute(" + std::to_string(name) + ")").c_str());
}
LibraryStatus ImagePlan::finalize(CudnnDescriptor d) {
  return said(api_, api_.BackendFinalize(d), "BackendFinalize");
}

LibraryStatus ImagePlan::tensor(int64_t id, const Layout& layout, bool is_virtual, bool by_value,
                                CudnnDescriptor* out) {
  OAR_DNN(make(kTensor, out));
  OAR_DNN(set(*out, kTensorType, kTypeDataType, 1, &kFloat));
  OAR_DNN(set(*out, kTensorDims, kTypeInt64, kDims, layout.dims));
  OAR_DNN(set(*out, kTensorStrides, kTypeInt64, kDims, layout.strides));
  OAR_DNN(set(*out, kTensorId, kTypeInt64, 1, &id));
  OAR_DNN(set(*out, kTensorAlignment, kTypeInt64, 1, &kAlignment));
  if (is_virtual) OAR_DNN(set(*out, kTensorVirtual, kTypeBool, 1, &is_virtual));
  if (by_value) OAR_DNN(set(*out, kTensorByValue, kTypeBool, 1, &by_value));
  if (!is_virtual) ids_.push_back(id);
  return finalize(*out);
}

LibraryStatus ImagePlan::convolve(const ImageOperation& o, CudnnDescriptor x, CudnnDescriptor y) {
  const WindowShape& s = o.window;
  const int64_t each = o.C / o.groups;
  Layout filters = {{o.M, each, s.KH, s.KW}, {s.KH * s.KW * each, 1, s.KW * each, each}};
  if (o.taps_first) filters = {{o.M, 1, s.KH, s.KW}, {1, 1, s.KW * o.C, o.C}};
  CudnnDescriptor w = nullptr, convolution = nullptr, operation = nullptr;
  OAR_DNN(tensor(kW, filters, false, false, &w));

  const int64_t dims = 2, dilations[] = {s.dilation_h, s.dilation_w}, strides[] = {s.stride_h, s.stride_w};
  const int64_t before[] = {s.pad_top, s.pad_left};
  const int64_t behind[] = {(s.OH - 1) * s.stride_h + (s.KH - 1) * s.dilation_h + 1 - s.pad_top - s.H,
                            (s.OW - 1) * s.stride_w + (s.KW - 1) * s.dilation_w + 1 - s.pad_left - s.W};
  const int64_t pads[] = {std::max<int64_t>(behind[0], 0), std::max<int64_t>(behind[1], 0)};
  OAR_DNN(make(kConvolution, &convolution));
  OAR_DNN(set(convolution, kConvolutionType, kTypeDataType, 1, &kFloat));
  OAR_DNN(set(convolution, kConvolutionMode, kTypeConvolutionMode, 1, &kCrossCorrelation));
  OAR_DNN(set(convolution, kSpatialDims, kTypeInt64, 1, &dims));
  OAR_DNN(set(convolution, kDilations, kTypeInt64, 2, dilations));
  OAR_DNN(set(convolution, kStrides, kTypeInt64, 2, strides));
  OAR_DNN(set(convolution, kPrePaddings, kTypeInt64, 2, before));
  OAR_DNN(set(convolution, kPostPaddings, kTypeInt64, 2, pads));
  OAR_DNN(finalize(convolution));

  const float one = 1.f, zero = 0.f;
  OAR_DNN(make(kConvolutionForward, &operation));
  OAR_DNN(set(operation, kConvDescriptor, kTypeDescriptor, 1, &convolution));
  OAR_DNN(set(operation, kConvX, kTypeDescriptor, 1, &x));
  OAR_DNN(set(operation, kConvW, kTypeDescriptor, 1, &w));
  OAR_DNN(set(operation, kConvY, kTypeDescriptor, 1, &y));
  OAR_DNN(set(operation, kConvAlpha, kTypeFloat, 1, &one));
  OAR_DNN(set(operation, kConvBeta, kTypeFloat, 1, &zero));
  operations_.push_back(operation);
  return finalize(operation);
}

LibraryStatus ImagePlan::pool(const ImageOperation& o, CudnnDescriptor x, CudnnDescriptor y) {
  const WindowShape& s = o.window;
  const bool largest = o.op == PoolOp::kMax;
  const int mode = largest ? kMaxPool : o.count_pads ? kAveragePool : kAveragePoolWithoutPads;
  const int padding = largest ? kLowestPad : kZeroPad;
  const int64_t dims = 2, window[] = {s.KH, s.KW}, strides[] = {s.stride_h, s.stride_w};
  const int64_t before[] = {s.pad_top, s.pad_left};
  const int64_t behind[] = {std::max<int64_t>((s.OH - 1) * s.stride_h + s.KH - s.pad_top - s.H, 0),
                            std::max<int64_t>((s.OW - 1) * s.stride_w + s.KW - s.pad_left - s.W, 0)};
  CudnnDescriptor resample = nullptr, operation = nullptr;
  OAR_DNN(make(kResample, &resample));
  OAR_DNN(set(resample, kResampleModeName, kTypeResampleMode, 1, &mode));
  OAR_DNN(set(resample, kResampleType, kTypeDataType, 1, &kFloat));
  OAR_DNN(set(resample, kResamplePadding, kTypePaddingMode, 1, &padding));
  OAR_DNN(set(resample, kResampleSpatialDims, kTypeInt64, 1, &dims));
  OAR_DNN(set(resample, kResampleWindow, kTypeInt64, 2, window));
  OAR_DNN(set(resample, kResampleStrides, kTypeInt64, 2, strides));
  OAR_DNN(set(resample, kResamplePrePaddings, kTypeInt64, 2, before));
  OAR_DNN(set(resample, kResamplePostPaddings, kTypeInt64, 2, behind));
  OAR_DNN(finalize(resample));
  OAR_DNN(make(kResampleForward, &operation));
  OAR_DNN(set(operation, kResampleX, kTypeDescriptor, 1, &x));
  OAR_DNN(set(operation, kResampleY, kTypeDescriptor, 1, &y));
  OAR_DNN(set(operation, kResampleDescriptor, kTypeDescriptor, 1, &resample));
  operations_.push_back(operation);
  return finalize(operation);
}

// y = x mode b, or mode(x) where b is null; `clips`: the operation whose activation a relu has its bounds of.
LibraryStatus ImagePlan::pointwise(int mode, const ImageOperation* clips, CudnnDescriptor x,
                                   CudnnDescriptor b, CudnnDescriptor y) {
  CudnnDescriptor kind = nullptr, operation = nullptr;
  OAR_DNN(make(kPointwise, &kind));
  OAR_DNN(set(kind, kPointwiseMode, kTypePointwiseMode, 1, &mode));
  OAR_DNN(set(kind, kPointwisePrecision, kTypeDataType, 1, &kFloat));
  if (mode == kRelu) {
    const bool leaky = clips->epilogue == Epilogue::kLeakyRelu, between = clips->epilogue == Epilogue::kClamp;
    const double lower = between ? static_cast<double>(clips->alpha) : 0,
                 upper = leaky     ? std::numeric_limits<double>::infinity()
                         : between ? static_cast<double>(clips->beta)
                                   : 1,
                 slope = leaky ? static_cast<double>(clips->alpha) : 0;
    OAR_DNN(set(kind, kReluLower, kTypeDouble, 1, &lower));
    if (upper < std::numeric_limits<double>::infinity())
      OAR_DNN(set(kind, kReluUpper, kTypeDouble, 1, &upper));
    if (leaky) OAR_DNN(set(kind, kReluSlope, kTypeDouble, 1, &slope));
  }
  if (mode == kSwish) {
    const double one = 1;
    OAR_DNN(set(kind, kSwishBeta, kTypeDouble, 1, &one));
  }
  OAR_DNN(finalize(kind));
  OAR_DNN(make(kPointwiseOperation, &operation));
  OAR_DNN(set(operation, kOperationPointwise, kTypeDescriptor, 1, &kind));
  OAR_DNN(set(operation, kOperationX, kTypeDescriptor, 1, &x));
  if (b != nullptr) OAR_DNN(set(operation, kOperationB, kTypeDescriptor, 1, &b));
  OAR_DNN(set(operation, kOperationY, kTypeDescriptor, 1, &y));
  operations_.push_back(operation);
  return finalize(operation);
}

LibraryStatus ImagePlan::build(const ImageOperation& o) {
  const WindowShape& s = o.window;
  const Layout image = {{s.N, o.C, s.H, s.W}, {s.H * s.W * o.C, 1, s.W * o.C, o.C}};
  const Layout result = {{s.N, o.M, s.OH, s.OW}, {s.OH * s.OW * o.M, 1, s.OW * o.M, o.M}};
  CudnnDescriptor x = nullptr, now = nullptr, sum = nullptr;
  OAR_DNN(tensor(kX, image, false, false, &x));

  // How many operations there are tells which of their results is the graph's.
  const int scaling = scaled(o.epilogue) ? (o.epilogue == Epilogue::kHardSwish ? 4 : 3) : 0;
  int left = (o.bias ? 1 : 0) + (o.residual ? 1 : 0) +
             (scaling > 0                     ? scaling
              : o.epilogue != Epilogue::kNone ? 1
                                              : 0);
  int64_t between = kFirstBetween;
  const auto next = [&](CudnnDescriptor* y) {
    return left-- == 0 ? tensor(kOut, result, false, false, y) : tensor(between++, result, true, false, y);
  };
  OAR_DNN(next(&now));
  OAR_DNN(o.pool ? pool(o, x, now) : convolve(o, x, now));
  const auto then = [&](int mode, CudnnDescriptor b) -> LibraryStatus {
    CudnnDescriptor y = nullptr;
    OAR_DNN(next(&y));
    OAR_DNN(pointwise(mode, &o, now, b, y));
    now = y;
    return {};
  };
  if (o.bias) {
    CudnnDescriptor bias = nullptr;
    OAR_DNN(tensor(kBias, {{1, o.M, 1, 1}, {o.M, 1, o.M, o.M}}, false, false, &bias));
    OAR_DNN(then(kAdd, bias));
  }
  if (o.residual) {
    CudnnDescriptor residual = nullptr;
    OAR_DNN(tensor(kResidual, result, false, false, &residual));
    OAR_DNN(then(kAdd, residual));
  }
  sum = now;
  switch (o.epilogue) {
    case Epilogue::kNone: break;
    case Epilogue::kClamp:
    case Epilogue::kLeakyRelu: OAR_DNN(then(kRelu, nullptr)); break;
    case Epilogue::kSigmoid: OAR_DNN(then(kSigmoid, nullptr)); break;
    case Epilogue::kSilu: OAR_DNN(then(kSwish, nullptr)); break;
    case Epilogue::kTanh: OAR_DNN(then(kTanh, nullptr)); break;
    case Epilogue::kGelu: OAR_DNN(then(kGelu, nullptr)); break;
    case Epilogue::kGeluTanh: OAR_DNN(then(kGeluTanh, nullptr)); break;
    case Epilogue::kElu:  // refused
    case Epilogue::kSoftplus:
    case Epilogue::kSoftsign:
    case Epilogue::kMish: break;
    case Epilogue::kHardSigmoid:
    case Epilogue::kHardSwish: {
      const Layout one = {{1, 1, 1, 1}, {1, 1, 1, 1}};
      CudnnDescriptor alpha = nullptr, beta = nullptr;
      OAR_DNN(tensor(kAlpha, one, false, true, &alpha));
      OAR_DNN(tensor(kBeta, one, false, true, &beta));
      alpha_ = o.alpha;
      beta_ = o.beta;
      OAR_DNN(then(kMul, alpha));
      OAR_DNN(then(kAdd, beta));
      OAR_DNN(then(kRelu, nullptr));
      if (o.epilogue == Epilogue::kHardSwish) OAR_DNN(then(kMul, sum));
      break;
    }
  }
  return {};
}

std::unique_ptr<ImagePlan> ImagePlan::graph(const CudnnApi& api, const ImageOperation& o,
                                            LibraryStatus* status, CudnnContext* handle) {
  if (const char* what = o.refusal()) {
    *status = {1, std::string("no graph of cuDNN: ") + what};
    return nullptr;
  }
  std::unique_ptr<ImagePlan> plan(new ImagePlan(api));
  const auto all = [&]() -> LibraryStatus {
    OAR_DNN(plan->build(o));
    OAR_DNN(plan->make(kOperationGraph, &plan->graph_));
    OAR_DNN(
        plan->set(plan->graph_, kGraphOps, kTypeDescriptor, plan->operations(), plan->operations_.data()));
    if (handle != nullptr) OAR_DNN(plan->set(plan->graph_, kGraphHandle, kTypeHandle, 1, &handle));
    return plan->finalize(plan->graph_);
  };
  *status = all();
  if (!status->ok()) return nullptr;
  return plan;
}

// ---- plans

namespace {
constexpr const char* kNoDevice = "a plan runs on a device, not for one that is only described";
}  // namespace

std::unique_ptr<Cudnn> Cudnn::make(const CudnnApi& api, std::string* why) {
  CudnnContext* handle = nullptr;
  if (const LibraryStatus failed = said(api, api.Create(&handle), "Create"); !failed.ok()) {
    *why = failed.what;
    return nullptr;
  }
  return std::unique_ptr<Cudnn>(new Cudnn(api, handle));
}
std::unique_ptr<Cudnn> Cudnn::for_described(const CudnnApi& api, const std::string& json, std::string* why) {
  std::unique_ptr<Cudnn> made(new Cudnn(api, nullptr));
  const auto all = [&]() -> LibraryStatus {
    OAR_DNN(said(api, api.BackendCreateDescriptor(kDeviceProperties, &made->described_),
                 "BackendCreateDescriptor(device)"));
    OAR_DNN(said(api,
                 api.BackendSetAttribute(made->described_, kPropertiesJson, kTypeChar,
                                         static_cast<int64_t>(json.size()) + 1, json.c_str()),
                 "BackendSetAttribute(description of the device)"));
    return said(api, api.BackendFinalize(made->described_), "BackendFinalize(device)");
  };
  if (const LibraryStatus failed = all(); !failed.ok()) {
    *why = failed.what;
    return nullptr;
  }
  return made;
}
Cudnn::~Cudnn() {
  if (described_ != nullptr) api_.BackendDestroyDescriptor(described_);
  if (handle_ != nullptr) api_.Destroy(handle_);
}

LibraryStatus Cudnn::workspace_of(CudnnDescriptor plan, uint64_t* bytes) {
  int64_t one = 0, all = 0;
  OAR_DNN(said(api_, api_.BackendGetAttribute(plan, kPlanWorkspace, kTypeInt64, 1, &one, &all),
               "BackendGetAttribute(workspace)"));
  *bytes = static_cast<uint64_t>(all);
  return {};
}

LibraryStatus Cudnn::text_of(CudnnDescriptor descriptor, int name, const char* what, std::string* text) {
  const auto get = [&](int64_t room, int64_t* count, char* to) {
    return said(api_, api_.BackendGetAttribute(descriptor, name, kTypeChar, room, count, to), what);
  };
  int64_t bytes = 0;
  OAR_DNN(get(0, &bytes, nullptr));
  text->resize(static_cast<size_t>(bytes));
  OAR_DNN(get(bytes, &bytes, text->data()));
  while (!text->empty() && text->back() == '\0') text->pop_back();  // the end of a C string is counted
  return {};
}

LibraryStatus Cudnn::choose(ImagePlan& p, uint64_t most_bytes) {
  CudnnDescriptor heuristics = nullptr;
  OAR_DNN(p.make(kHeuristics, &heuristics));
  OAR_DNN(p.set(heuristics, kHeuristicsGraph, kTypeDescriptor, 1, &p.graph_));
  OAR_DNN(p.set(heuristics, kHeuristicsMode, kTypeHeuristicsMode, 1, &kModeA));
  if (handle_ == nullptr) { OAR_DNN(p.set(heuristics, kHeuristicsDevice, kTypeDescriptor, 1, &described_)); }
  OAR_DNN(p.finalize(heuristics));
  constexpr int64_t kMost = 16;
  CudnnDescriptor proposed[kMost] = {};
  for (CudnnDescriptor& c : proposed) OAR_DNN(p.make(kEngineConfig, &c));
  int64_t count = 0;
  OAR_DNN(
      said(api_,
           api_.BackendGetAttribute(heuristics, kHeuristicsResults, kTypeDescriptor, kMost, &count, proposed),
           "BackendGetAttribute(engine configurations)"));
  for (int64_t i = 0; i < std::min(count, kMost); ++i) {
    CudnnDescriptor engine = nullptr, plan = nullptr;
    OAR_DNN(p.make(kEngine, &engine));
    int64_t one = 0, notes = 0;
    int note[16] = {};
    OAR_DNN(said(api_,
                 api_.BackendGetAttribute(proposed[i], kConfigEngine, kTypeDescriptor, 1, &one, &engine),
                 "BackendGetAttribute(engine)"));
    OAR_DNN(said(api_, api_.BackendGetAttribute(engine, kEngineNotes, kTypeNumericalNote, 16, &notes, note),
                 "BackendGetAttribute(notes)"));
    if (std::any_of(note, note + std::min<int64_t>(notes, 16), [](int n) {
          return n == kNoteDownConverts || n == kNoteReducedReduction || n == kNoteNondeterministic ||
                 n == kNoteTensorCore;
        }))
      continue;
    OAR_DNN(p.make(kPlan, &plan));
    const bool here = handle_ != nullptr;
    OAR_DNN(here ? p.set(plan, kPlanHandle, kTypeHandle, 1, &handle_)
                 : p.set(plan, kPlanDevice, kTypeDescriptor, 1, &described_));
    OAR_DNN(p.set(plan, kPlanConfig, kTypeDescriptor, 1, &proposed[i]));
    if (!p.finalize(plan).ok()) continue;  // an engine that cannot run here
    uint64_t bytes = 0;
    OAR_DNN(workspace_of(plan, &bytes));
    if (bytes > most_bytes) continue;
    p.plan_ = plan;
    p.workspace_ = bytes;
    return {};
  }
  return {1, "cuDNN has no engine that computes this in f32 within the workspace"};
}

std::unique_ptr<ImagePlan> Cudnn::prepare(const ImageOperation& operation, uint64_t workspace_bytes,
                                          LibraryStatus* status) {
  auto plan = ImagePlan::graph(api_, operation, status, handle_);
  if (plan == nullptr) return nullptr;
  *status = choose(*plan, workspace_bytes);
  return status->ok() ? std::move(plan) : nullptr;
}

namespace {

// A descriptor by itself.
struct Owned {
  explicit Owned(const CudnnApi& functions) : api(functions) {}
  ~Owned() {
    if (handle != nullptr) api.BackendDestroyDescriptor(handle);
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  LibraryStatus make(int type) {
    return said(api, api.BackendCreateDescriptor(type, &handle), "BackendCreateDescriptor");
  }
  const CudnnApi& api;
  CudnnDescriptor handle = nullptr;
};

}  // namespace

LibraryStatus Cudnn::describe_device(std::string* json) {
  Owned device(api_);
  OAR_DNN(device.make(kDeviceProperties));
  OAR_DNN(said(api_, api_.BackendSetAttribute(device.handle, kPropertiesHandle, kTypeHandle, 1, &handle_),
               "BackendSetAttribute(handle of the device)"));
  OAR_DNN(said(api_, api_.BackendFinalize(device.handle), "BackendFinalize"));
  return text_of(device.handle, kPropertiesJson, "BackendGetAttribute(description of the device)", json);
}

LibraryStatus Cudnn::write(ImagePlan& plan, std::string* json) {
  return text_of(plan.plan_, kPlanJson, "BackendGetAttribute(plan)", json);
}

std::unique_ptr<ImagePlan> Cudnn::read(const ImageOperation& operation, const std::string& json,
                                       LibraryStatus* status) {
  auto p = ImagePlan::graph(api_, operation, status, handle_);
  if (p == nullptr) return nullptr;
  const auto all = [&]() -> LibraryStatus {
    if (handle_ == nullptr) return {1, kNoDevice};
    OAR_DNN(p->make(kPlan, &p->plan_));
    OAR_DNN(p->set(p->plan_, kPlanHandle, kTypeHandle, 1, &handle_));
    OAR_DNN(p->set(p->plan_, kPlanJson, kTypeChar, static_cast<int64_t>(json.size()) + 1, json.c_str()));
    OAR_DNN(p->finalize(p->plan_));
    return workspace_of(p->plan_, &p->workspace_);
  };
  *status = all();
  return status->ok() ? std::move(p) : nullptr;
}

LibraryStatus Cudnn::run(ImagePlan& p, const ImageOperands& o, Stream stream) {
  if (handle_ == nullptr) return {1, kNoDevice};
  std::vector<const void*> pointers;
  for (const int64_t id : p.ids_) {
    pointers.push_back(id == kX          ? static_cast<const void*>(o.x)
                       : id == kW        ? o.w
                       : id == kBias     ? o.bias
                       : id == kResidual ? o.residual
                       : id == kOut      ? o.out
                       : id == kAlpha    ? static_cast<const void*>(&p.alpha_)
                                         : &p.beta_);
  }
  OAR_DNN(said(api_, api_.SetStream(handle_, stream), "SetStream"));
  Owned pack(api_);
  const auto count = static_cast<int64_t>(p.ids_.size());
  OAR_DNN(pack.make(kVariantPack));
  OAR_DNN(p.set(pack.handle, kPackIds, kTypeInt64, count, p.ids_.data()));
  OAR_DNN(p.set(pack.handle, kPackPointers, kTypePointer, count, pointers.data()));
  OAR_DNN(p.set(pack.handle, kPackWorkspace, kTypePointer, 1, &o.workspace));
  OAR_DNN(p.finalize(pack.handle));
  return said(api_, api_.BackendExecute(handle_, p.plan_, pack.handle), "BackendExecute");
}

#undef OAR_DNN

}  // namespace oar::cuda
