#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "kernels/cuda/emulation/emulation.h"
#include "kernels/cuda/emulation/libraries.h"
#include "kernels/cuda/emulation/runtime.h"

namespace oar::cuda::emulation {
namespace {

using namespace cudnn;

constexpr CudnnResult kSuccess = 0, kBadParam = 2000, kNotSupported = 3000, kExecutionFailed = 5000;
constexpr int64_t kWorkspace = 512;
constexpr uint64_t kAlignment = 16, kWorkspaceAlignment = 256;
constexpr int kDims = 4, kMostIds = 8;
constexpr int64_t kMostText = 1 << 16;
constexpr char kDescription[] = R"({"deviceName":"emulated CUDA device"})";  // and the end of a C string

struct Attribute {
  int type = 0;
  std::vector<char> bytes;
  template <class T>
  size_t count() const {
    return bytes.size() / sizeof(T);
  }
  template <class T>
  T at(size_t i) const {
    T value;
    std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
    return value;
  }
};
struct Descriptor {
  int type = 0;
  bool finalized = false;
  int engine = 0;  // of engines and their configurations: which of the two
  std::map<int, Attribute> attributes;

  bool has(int name) const { return attributes.contains(name); }
  template <class T>
  T get(int name, size_t i = 0, T otherwise = {}) const {
    const auto found = attributes.find(name);
    return found != attributes.end() && i < found->second.count<T>() ? found->second.at<T>(i) : otherwise;
  }
  const Descriptor& its(int name, size_t i = 0) const { return *get<const Descriptor*>(name, i); }
};

// What an attribute must be: of which descriptor, its type, and how many elements at most.
struct Rule {
  int of, name, type;
  int64_t most;
  bool needed;
  int descriptor = -1;  // what it must be a descriptor of
};
constexpr int kAnyOperation = -2;
constexpr Rule kRules[] = {
    {kTensor, kTensorType, kTypeDataType, 1, true},
    {kTensor, kTensorDims, kTypeInt64, kDims, true},
    {kTensor, kTensorStrides, kTypeInt64, kDims, true},
    {kTensor, kTensorId, kTypeInt64, 1, true},
    {kTensor, kTensorAlignment, kTypeInt64, 1, true},
    {kTensor, kTensorVirtual, kTypeBool, 1, false},
    {kTensor, kTensorByValue, kTypeBool, 1, false},
    {kConvolution, kConvolutionType, kTypeDataType, 1, true},
    {kConvolution, kConvolutionMode, kTypeConvolutionMode, 1, true},
    {kConvolution, kSpatialDims, kTypeInt64, 1, true},
    {kConvolution, kDilations, kTypeInt64, 2, true},
    {kConvolution, kStrides, kTypeInt64, 2, true},
    {kConvolution, kPrePaddings, kTypeInt64, 2, true},
    {kConvolution, kPostPaddings, kTypeInt64, 2, true},
    {kConvolutionForward, kConvDescriptor, kTypeDescriptor, 1, true, kConvolution},
    {kConvolutionForward, kConvX, kTypeDescriptor, 1, true, kTensor},
    {kConvolutionForward, kConvW, kTypeDescriptor, 1, true, kTensor},
    {kConvolutionForward, kConvY, kTypeDescriptor, 1, true, kTensor},
    {kConvolutionForward, kConvAlpha, kTypeFloat, 1, true},
    {kConvolutionForward, kConvBeta, kTypeFloat, 1, true},
    {kResample, kResampleModeName, kTypeResampleMode, 1, true},
    {kResample, kResampleType, kTypeDataType, 1, true},
    {kResample, kResamplePadding, kTypePaddingMode, 1, true},
    {kResample, kResampleSpatialDims, kTypeInt64, 1, true},
    {kResample, kResampleWindow, kTypeInt64, 2, true},
    {kResample, kResampleStrides, kTypeInt64, 2, true},
    {kResample, kResamplePrePaddings, kTypeInt64, 2, true},
    {kResample, kResamplePostPaddings, kTypeInt64, 2, true},
    {kResampleForward, kResampleX, kTypeDescriptor, 1, true, kTensor},
    {kResampleForward, kResampleY, kTypeDescriptor, 1, true, kTensor},
    {kResampleForward, kResampleDescriptor, kTypeDescriptor, 1, true, kResample},
    {kPointwise, kPointwiseMode, kTypePointwiseMode, 1, true},
    {kPointwise, kPointwisePrecision, kTypeDataType, 1, true},
    {kPointwise, kReluLower, kTypeDouble, 1, false},
    {kPointwise, kReluUpper, kTypeDouble, 1, false},
    {kPointwise, kReluSlope, kTypeDouble, 1, false},
    {kPointwise, kSwishBeta, kTypeDouble, 1, false},
    {kPointwiseOperation, kOperationPointwise, kTypeDescriptor, 1, true, kPointwise},
    {kPointwiseOperation, kOperationX, kTypeDescriptor, 1, true, kTensor},
    {kPointwiseOperation, kOperationB, kTypeDescriptor, 1, false, kTensor},
    {kPointwiseOperation, kOperationY, kTypeDescriptor, 1, true, kTensor},
    {kOperationGraph, kGraphOps, kTypeDescriptor, 64, true, kAnyOperation},
    {kOperationGraph, kGraphHandle, kTypeHandle, 1, false},
    {kHeuristics, kHeuristicsGraph, kTypeDescriptor, 1, true, kOperationGraph},
    {kHeuristics, kHeuristicsMode, kTypeHeuristicsMode, 1, true},
    {kHeuristics, kHeuristicsDevice, kTypeDescriptor, 1, false, kDeviceProperties},
    {kPlan, kPlanHandle, kTypeHandle, 1, false},
    {kPlan, kPlanDevice, kTypeDescriptor, 1, false, kDeviceProperties},
    {kPlan, kPlanConfig, kTypeDescriptor, 1, false, kEngineConfig},
    {kPlan, kPlanJson, kTypeChar, kMostText, false},
    {kVariantPack, kPackIds, kTypeInt64, kMostIds, true},
    {kVariantPack, kPackPointers, kTypePointer, kMostIds, true},
    {kVariantPack, kPackWorkspace, kTypePointer, 1, true},
    {kDeviceProperties, kPropertiesHandle, kTypeHandle, 1, false},
    {kDeviceProperties, kPropertiesJson, kTypeChar, kMostText, false},
};
size_t size_of(int type) {
  switch (type) {
    case kTypeBool:
    case kTypeChar: return 1;
    case kTypeInt64:
    case kTypeDouble:
    case kTypeHandle:
    case kTypePointer:
    case kTypeDescriptor: return 8;
    default: return 4;
  }
}

// ---- what finalizing looks at

int64_t dim(const Descriptor& t, size_t i) { return t.get<int64_t>(kTensorDims, i); }
bool is_virtual(const Descriptor& t) { return t.get<bool>(kTensorVirtual); }
bool by_value(const Descriptor& t) { return t.get<bool>(kTensorByValue); }
bool unary(int mode) { return mode != kAdd && mode != kMul; }

bool good_tensor(const Descriptor& t) {
  for (size_t i = 0; i < kDims; ++i) {
    if (dim(t, i) <= 0 || t.get<int64_t>(kTensorStrides, i) <= 0) return false;
    if (by_value(t) && dim(t, i) != 1) return false;
  }
  return t.attributes.at(kTensorDims).count<int64_t>() == kDims &&
         t.attributes.at(kTensorStrides).count<int64_t>() == kDims && t.get<int>(kTensorType) == kFloat &&
         t.get<int64_t>(kTensorAlignment) % 4 == 0 && !(is_virtual(t) && by_value(t));
}

// Results of windows along axis i of images; -1: of no size.
int64_t windows(const Descriptor& d, size_t i, int64_t in, int64_t taps, int64_t dilation, int before,
                int behind, int strides) {
  const int64_t pads = d.get<int64_t>(before, i) + d.get<int64_t>(behind, i),
                stride = d.get<int64_t>(strides, i);
  if (d.get<int64_t>(before, i) < 0 || d.get<int64_t>(behind, i) < 0 || stride <= 0 || dilation <= 0)
    return -1;
  const int64_t room = in + pads - dilation * (taps - 1) - 1;
  return room < 0 ? -1 : room / stride + 1;
}

bool good_convolution(const Descriptor& op) {
  const Descriptor &x = op.its(kConvX), &w = op.its(kConvW), &y = op.its(kConvY),
                   &c = op.its(kConvDescriptor);
  if (c.get<int>(kConvolutionMode) != kCrossCorrelation || dim(x, 1) % dim(w, 1) != 0) return false;
  const int64_t groups = dim(x, 1) / dim(w, 1);
  if (dim(w, 0) % groups != 0 || dim(y, 0) != dim(x, 0) || dim(y, 1) != dim(w, 0)) return false;
  for (size_t i = 0; i < 2; ++i) {
    if (dim(y, 2 + i) != windows(c, i, dim(x, 2 + i), dim(w, 2 + i), c.get<int64_t>(kDilations, i),
                                 kPrePaddings, kPostPaddings, kStrides))
      return false;
  }
  return op.get<float>(kConvAlpha) == 1.f && op.get<float>(kConvBeta) == 0.f;
}
bool good_resample(const Descriptor& op) {
  const Descriptor &x = op.its(kResampleX), &y = op.its(kResampleY), &r = op.its(kResampleDescriptor);
  if (dim(y, 0) != dim(x, 0) || dim(y, 1) != dim(x, 1)) return false;
  for (size_t i = 0; i < 2; ++i) {
    const int64_t taps = r.get<int64_t>(kResampleWindow, i);
    if (dim(y, 2 + i) !=
        windows(r, i, dim(x, 2 + i), taps, 1, kResamplePrePaddings, kResamplePostPaddings, kResampleStrides))
      return false;
    if (r.get<int64_t>(kResamplePrePaddings, i) >= taps || r.get<int64_t>(kResamplePostPaddings, i) >= taps)
      return false;  // a window of pads alone
  }
  return true;
}
bool good_pointwise(const Descriptor& op) {
  const Descriptor &x = op.its(kOperationX), &y = op.its(kOperationY);
  const int mode = op.its(kOperationPointwise).get<int>(kPointwiseMode);
  if (unary(mode) == op.has(kOperationB)) return false;
  for (size_t i = 0; i < kDims; ++i) {
    if (dim(x, i) != dim(y, i)) return false;
    if (op.has(kOperationB) && dim(op.its(kOperationB), i) != 1 && dim(op.its(kOperationB), i) != dim(y, i))
      return false;
  }
  return true;
}

std::vector<const Descriptor*> read_by(const Descriptor& op) {
  if (op.type == kConvolutionForward) return {&op.its(kConvX), &op.its(kConvW)};
  if (op.type == kResampleForward) return {&op.its(kResampleX)};
  if (op.has(kOperationB)) return {&op.its(kOperationX), &op.its(kOperationB)};
  return {&op.its(kOperationX)};
}
const Descriptor& written_by(const Descriptor& op) {
  return op.its(op.type == kConvolutionForward ? kConvY
                : op.type == kResampleForward  ? kResampleY
                                               : kOperationY);
}
std::vector<const Descriptor*> operations_of(const Descriptor& graph) {
  std::vector<const Descriptor*> out;
  for (size_t i = 0; i < graph.attributes.at(kGraphOps).count<const Descriptor*>(); ++i)
    out.push_back(&graph.its(kGraphOps, i));
  return out;
}

// Operations in order, each tensor with a name of its own; what is virtual is written once, before it is
// read, and read; one result is not.
bool good_graph(const Descriptor& graph) {
  std::map<int64_t, const Descriptor*> names;
  std::set<const Descriptor*> written, read;
  int results = 0;
  const auto named = [&](const Descriptor& t) {
    const auto [at, is_new] = names.try_emplace(t.get<int64_t>(kTensorId), &t);
    return at->second == &t;
  };
  for (const Descriptor* op : operations_of(graph)) {
    for (const Descriptor* t : read_by(*op)) {
      if (!named(*t) || (is_virtual(*t) && !written.contains(t))) return false;
      read.insert(t);
    }
    const Descriptor& y = written_by(*op);
    if (!named(y) || by_value(y) || !written.insert(&y).second) return false;
    results += is_virtual(y) ? 0 : 1;
  }
  return results == 1 && std::all_of(written.begin(), written.end(), [&](const Descriptor* t) {
           return !is_virtual(*t) || read.contains(t);
         });
}

// ---- plans that are written

// A descriptor with all that it holds, each once.
using Copies = std::map<const Descriptor*, std::unique_ptr<Descriptor>>;
const Descriptor* copy_of(const Descriptor* from, Copies& copies) {
  const auto [at, is_new] = copies.try_emplace(from);
  if (!is_new) return at->second.get();
  auto& copy = at->second = std::make_unique<Descriptor>(*from);
  Descriptor* const its = copy.get();
  for (auto& [name, attribute] : its->attributes) {
    for (size_t i = 0; attribute.type == kTypeDescriptor && i < attribute.count<Descriptor*>(); ++i) {
      const Descriptor* const held = copy_of(attribute.at<const Descriptor*>(i), copies);
      std::memcpy(attribute.bytes.data() + i * sizeof held, &held, sizeof held);
    }
  }
  return its;
}
struct Written {
  Copies copies;
  const Descriptor* config;
};
std::mutex g_written_mutex;
std::vector<Written>& written() {
  static auto& plans = *new std::vector<Written>;
  return plans;
}
// The text names the copy of the plan's configuration, which has its graph.
std::string write_plan(const Descriptor& plan) {
  const std::lock_guard lock(g_written_mutex);
  Written w;
  w.config = copy_of(&plan.its(kPlanConfig), w.copies);
  written().push_back(std::move(w));
  return R"({"plan":)" + std::to_string(written().size() - 1) + "}";
}
// False: nobody wrote it.
bool read_plan(Descriptor& plan) {
  const std::lock_guard lock(g_written_mutex);
  size_t number = 0;
  const auto& text = plan.attributes.at(kPlanJson).bytes;
  if (text.back() != '\0' || std::sscanf(text.data(), R"({"plan":%zu})", &number) != 1 ||
      number >= written().size())
    return false;
  Attribute config{kTypeDescriptor, std::vector<char>(sizeof(Descriptor*))};
  std::memcpy(config.bytes.data(), &written()[number].config, sizeof(Descriptor*));
  plan.attributes[kPlanConfig] = std::move(config);
  return true;
}

// A plan is of a configuration for either, or of a text for a device that is there.
bool good_plan(Descriptor& d) {
  if (d.has(kPlanHandle) == d.has(kPlanDevice) || d.has(kPlanConfig) == d.has(kPlanJson)) return false;
  return d.has(kPlanConfig) || (d.has(kPlanHandle) && read_plan(d));
}
bool good_description(const Descriptor& d) {
  if (d.has(kPropertiesHandle) == d.has(kPropertiesJson)) return false;
  if (d.has(kPropertiesHandle)) return true;
  const auto& text = d.attributes.at(kPropertiesJson).bytes;
  return std::equal(text.begin(), text.end(), std::begin(kDescription), std::end(kDescription));
}
CudnnResult text(const std::string& all, int64_t room, int64_t* count, void* to) {
  *count = static_cast<int64_t>(all.size()) + 1;
  if (room == 0) return kSuccess;
  if (room < *count || to == nullptr) return kBadParam;
  std::memcpy(to, all.c_str(), all.size() + 1);
  return kSuccess;
}

CudnnResult finalize(CudnnDescriptor handle) {
  auto& d = *static_cast<Descriptor*>(handle);
  if (handle == nullptr || d.finalized) return kBadParam;
  for (const Rule& r : kRules)
    if (r.of == d.type && r.needed && !d.has(r.name)) return kBadParam;
  const bool good = d.type == kTensor               ? good_tensor(d)
                    : d.type == kConvolutionForward ? good_convolution(d)
                    : d.type == kResampleForward    ? good_resample(d)
                    : d.type == kPointwiseOperation ? good_pointwise(d)
                    : d.type == kOperationGraph     ? good_graph(d)
                    : d.type == kPlan               ? good_plan(d)
                    : d.type == kDeviceProperties   ? good_description(d)
                                                    : true;
  if (!good) return kBadParam;
  if (d.type == kHeuristics && d.its(kHeuristicsGraph).has(kGraphHandle) == d.has(kHeuristicsDevice))
    return kBadParam;
  if (d.type == kPlan && refused_in_capture()) return kExecutionFailed;  // it loads kernels
  d.finalized = true;
  return kSuccess;
}

// ---- the functions

struct Context {
  Stream stream = nullptr;
};
CudnnResult create(CudnnContext** handle) {
  if (refused_in_capture()) return kExecutionFailed;  // it allocates
  *handle = reinterpret_cast<CudnnContext*>(new Context);
  return kSuccess;
}
CudnnResult destroy(CudnnContext* handle) {
  if (refused_in_capture()) return kExecutionFailed;  // it waits for the device
  delete reinterpret_cast<Context*>(handle);
  return kSuccess;
}
CudnnResult set_stream(CudnnContext* handle, Stream stream) {
  reinterpret_cast<Context*>(handle)->stream = stream;
  return kSuccess;
}
const char* error_string(CudnnResult code) {
  switch (code) {
    case kSuccess: return "CUDNN_STATUS_SUCCESS";
    case kBadParam: return "CUDNN_STATUS_BAD_PARAM";
    case kNotSupported: return "CUDNN_STATUS_NOT_SUPPORTED";
    default: return "CUDNN_STATUS_EXECUTION_FAILED";
  }
}
CudnnResult create_descriptor(int type, CudnnDescriptor* d) {
  *d = new Descriptor{type};
  return kSuccess;
}
CudnnResult destroy_descriptor(CudnnDescriptor d) {
  delete static_cast<Descriptor*>(d);
  return kSuccess;
}
CudnnResult set_attribute(CudnnDescriptor handle, int name, int type, int64_t count, const void* value) {
  auto& d = *static_cast<Descriptor*>(handle);
  const auto* rule = std::find_if(std::begin(kRules), std::end(kRules),
                                  [&](const Rule& r) { return r.of == d.type && r.name == name; });
  if (d.finalized || rule == std::end(kRules) || type != rule->type || count < 1 || count > rule->most ||
      value == nullptr)
    return kBadParam;
  Attribute a{type, std::vector<char>(static_cast<size_t>(count) * size_of(type))};
  std::memcpy(a.bytes.data(), value, a.bytes.size());
  for (size_t i = 0; type == kTypeDescriptor && i < static_cast<size_t>(count); ++i) {
    const auto* its = a.at<const Descriptor*>(i);
    const bool operation =
        its != nullptr && (its->type == kConvolutionForward || its->type == kResampleForward ||
                           its->type == kPointwiseOperation);
    if (its == nullptr || !its->finalized ||
        (rule->descriptor == kAnyOperation ? !operation : its->type != rule->descriptor))
      return kBadParam;
  }
  d.attributes[name] = std::move(a);
  return kSuccess;
}

// Two engines: the first rounds its operands, which nobody asked for; the second computes in f32.
CudnnResult get_attribute(CudnnDescriptor handle, int name, int type, int64_t room, int64_t* count,
                          void* to) {
  auto& d = *static_cast<Descriptor*>(handle);
  if (!d.finalized) return kBadParam;
  if (d.type == kHeuristics && name == kHeuristicsResults && type == kTypeDescriptor && room >= 2) {
    *count = 2;
    for (int i = 0; i < 2; ++i) {
      auto& config = **(static_cast<Descriptor**>(to) + i);
      config = {kEngineConfig, true, i, {}};
      config.attributes[kHeuristicsGraph] = d.attributes.at(kHeuristicsGraph);
    }
    return kSuccess;
  }
  if (d.type == kDeviceProperties && name == kPropertiesJson && type == kTypeChar)
    return text(kDescription, room, count, to);
  if (d.type == kPlan && name == kPlanJson && type == kTypeChar) return text(write_plan(d), room, count, to);
  *count = 1;
  if (d.type == kEngineConfig && name == kConfigEngine && type == kTypeDescriptor && room == 1) {
    **static_cast<Descriptor**>(to) = {kEngine, true, d.engine, {}};
    return kSuccess;
  }
  if (d.type == kEngine && name == kEngineNotes && type == kTypeNumericalNote && room >= 1) {
    *count = d.engine == 0 ? 1 : 0;
    if (d.engine == 0) *static_cast<int*>(to) = kNoteDownConverts;
    return kSuccess;
  }
  if (d.type == kPlan && name == kPlanWorkspace && type == kTypeInt64 && room == 1) {
    *static_cast<int64_t*>(to) = kWorkspace;
    return kSuccess;
  }
  return kBadParam;
}

// ---- running

// A tensor's numbers, wherever they are.
struct Numbers {
  std::vector<int64_t> dims, strides;
  float* device = nullptr;  // or host memory
  std::vector<double> between;
  int64_t offset(const int64_t (&at)[kDims]) const {
    int64_t o = 0;
    for (size_t i = 0; i < kDims; ++i) o += (dims[i] == 1 ? 0 : at[i]) * strides[i];
    return o;
  }
  double get(const int64_t (&at)[kDims]) const {
    const int64_t o = offset(at);
    return device != nullptr ? static_cast<double>(device[o]) : between[static_cast<size_t>(o)];
  }
  void set(const int64_t (&at)[kDims], double value) {
    const int64_t o = offset(at);
    if (device != nullptr) device[o] = static_cast<float>(value);
    else between[static_cast<size_t>(o)] = value;
  }
  int64_t elements() const {
    int64_t last = 0;
    for (size_t i = 0; i < kDims; ++i) last += (dims[i] - 1) * strides[i];
    return last + 1;
  }
};
template <class Each>
void for_each(const Numbers& t, const Each& each) {
  int64_t at[kDims];
  for (at[0] = 0; at[0] < t.dims[0]; ++at[0])
    for (at[2] = 0; at[2] < t.dims[2]; ++at[2])
      for (at[3] = 0; at[3] < t.dims[3]; ++at[3])
        for (at[1] = 0; at[1] < t.dims[1]; ++at[1]) each(at);
}

double activation(const Descriptor& p, double x) {
  switch (p.get<int>(kPointwiseMode)) {
    case kRelu: {
      const double lower = p.get<double>(kReluLower), upper = p.get<double>(kReluUpper, 0, INFINITY);
      return x < lower ? lower + (x - lower) * p.get<double>(kReluSlope) : std::min(x, upper);
    }
    case kTanh: return std::tanh(x);
    case kSigmoid: return 1 / (1 + std::exp(-x));
    case kSwish: return x / (1 + std::exp(-p.get<double>(kSwishBeta, 0, 1) * x));
    case kGelu: return x / 2 * std::erfc(-x / std::sqrt(2.0));
    case kGeluTanh: return x / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    default: return NAN;
  }
}

void convolve(const Descriptor& op, const Numbers& x, const Numbers& w, Numbers& y) {
  const Descriptor& c = op.its(kConvDescriptor);
  const int64_t groups = x.dims[1] / w.dims[1], each = w.dims[0] / groups;
  for_each(y, [&](const int64_t(&at)[kDims]) {
    double sum = 0;
    for (int64_t i = 0; i < w.dims[2]; ++i) {
      for (int64_t j = 0; j < w.dims[3]; ++j) {
        const int64_t row = at[2] * c.get<int64_t>(kStrides, 0) + i * c.get<int64_t>(kDilations, 0) -
                            c.get<int64_t>(kPrePaddings, 0),
                      col = at[3] * c.get<int64_t>(kStrides, 1) + j * c.get<int64_t>(kDilations, 1) -
                            c.get<int64_t>(kPrePaddings, 1);
        if (row < 0 || row >= x.dims[2] || col < 0 || col >= x.dims[3]) continue;
        for (int64_t k = 0; k < w.dims[1]; ++k)
          sum += x.get({at[0], at[1] / each * w.dims[1] + k, row, col}) * w.get({at[1], k, i, j});
      }
    }
    y.set(at, sum);
  });
}
void resample(const Descriptor& op, const Numbers& x, Numbers& y) {
  const Descriptor& r = op.its(kResampleDescriptor);
  const int mode = r.get<int>(kResampleModeName);
  for_each(y, [&](const int64_t(&at)[kDims]) {
    double most = -std::numeric_limits<double>::infinity(), sum = 0;
    int64_t count = 0;
    for (int64_t i = 0; i < r.get<int64_t>(kResampleWindow, 0); ++i) {
      for (int64_t j = 0; j < r.get<int64_t>(kResampleWindow, 1); ++j) {
        const int64_t row = at[2] * r.get<int64_t>(kResampleStrides, 0) + i -
                            r.get<int64_t>(kResamplePrePaddings, 0),
                      col = at[3] * r.get<int64_t>(kResampleStrides, 1) + j -
                            r.get<int64_t>(kResamplePrePaddings, 1);
        const bool inside = row >= 0 && row < x.dims[2] && col >= 0 && col < x.dims[3];
        count += inside || mode == kAveragePool;
        if (!inside) continue;
        const double v = x.get({at[0], at[1], row, col});
        most = std::max(most, v);
        sum += v;
      }
    }
    y.set(at, mode == kMaxPool ? most : sum / static_cast<double>(count));
  });
}

CudnnResult execute(CudnnContext* handle, CudnnDescriptor its_plan, CudnnDescriptor its_pack) {
  const auto &plan = *static_cast<const Descriptor*>(its_plan),
             &pack = *static_cast<const Descriptor*>(its_pack);
  if (handle == nullptr || plan.type != kPlan || pack.type != kVariantPack || !plan.finalized ||
      !pack.finalized || plan.get<CudnnContext*>(kPlanHandle) != handle)
    return kBadParam;
  const Descriptor& graph = plan.its(kPlanConfig).its(kHeuristicsGraph);
  std::map<int64_t, float*> given;
  const size_t ids = pack.attributes.at(kPackIds).count<int64_t>();
  if (pack.attributes.at(kPackPointers).count<void*>() != ids) return kBadParam;
  for (size_t i = 0; i < ids; ++i)
    if (!given.emplace(pack.get<int64_t>(kPackIds, i), pack.get<float*>(kPackPointers, i)).second)
      return kBadParam;
  auto* workspace = pack.get<void*>(kPackWorkspace);
  if (reinterpret_cast<uintptr_t>(workspace) % kWorkspaceAlignment != 0) return kBadParam;
  auto tensors = std::make_shared<std::map<const Descriptor*, Numbers>>();
  for (const Descriptor* op : operations_of(graph)) {
    std::vector<const Descriptor*> all = read_by(*op);
    all.push_back(&written_by(*op));
    for (const Descriptor* t : all) {
      if (tensors->contains(t)) continue;
      Numbers n;
      for (size_t i = 0; i < kDims; ++i) {
        n.dims.push_back(dim(*t, i));
        n.strides.push_back(t->get<int64_t>(kTensorStrides, i));
      }
      if (is_virtual(*t)) {
        n.between.assign(static_cast<size_t>(n.elements()), NAN);
      } else {
        const auto found = given.find(t->get<int64_t>(kTensorId));
        if (found == given.end()) return kBadParam;
        n.device = found->second;
        if (by_value(*t)) {  // host memory, read now
          if (n.device == nullptr || device_holds(n.device, sizeof(float))) return kBadParam;
          n.between = {static_cast<double>(*n.device)};
          n.device = nullptr;
        } else if (n.device == nullptr || reinterpret_cast<uintptr_t>(n.device) % kAlignment != 0) {
          return kBadParam;
        }
        given.erase(found);
      }
      tensors->emplace(t, std::move(n));
    }
  }
  if (!given.empty()) return kBadParam;  // what no graph reads
  std::vector<Touched> memory = {{workspace, static_cast<size_t>(kWorkspace)}};
  for (const auto& [descriptor, n] : *tensors) {
    if (n.device != nullptr) memory.push_back({n.device, static_cast<size_t>(n.elements()) * sizeof(float)});
  }
  if (!std::all_of(memory.begin(), memory.end(),
                   [](const Touched& t) { return device_holds(t.at, t.bytes); }))
    return kBadParam;
  // The descriptors of a plan outlive its work, as those of this call need not.
  const Stream stream = reinterpret_cast<Context*>(handle)->stream;
  const int error = launch_over(stream, std::move(memory), [tensors, &graph, workspace] {
    std::map<const Descriptor*, Numbers> now = *tensors;
    for (const Descriptor* op : operations_of(graph)) {
      Numbers& y = now.at(&written_by(*op));
      if (op->type == kConvolutionForward) {
        convolve(*op, now.at(&op->its(kConvX)), now.at(&op->its(kConvW)), y);
      } else if (op->type == kResampleForward) {
        resample(*op, now.at(&op->its(kResampleX)), y);
      } else {
        const Descriptor& p = op->its(kOperationPointwise);
        const Numbers& x = now.at(&op->its(kOperationX));
        const Numbers* b = op->has(kOperationB) ? &now.at(&op->its(kOperationB)) : nullptr;
        const int mode = p.get<int>(kPointwiseMode);
        for_each(y, [&](const int64_t(&at)[kDims]) {
          const double v = x.get(at);
          y.set(at, mode == kAdd ? v + b->get(at) : mode == kMul ? v * b->get(at) : activation(p, v));
        });
      }
    }
    // What it works in is nobody else's.
    std::memset(workspace, 0xff, static_cast<size_t>(kWorkspace));
  });
  return error == 0 ? kSuccess : kExecutionFailed;
}

}  // namespace

const CudnnApi& fake_cudnn() {
  static const CudnnApi api = {
      create,   destroy,       set_stream,    error_string, create_descriptor, destroy_descriptor,
      finalize, set_attribute, get_attribute, execute};
  return api;
}

}  // namespace oar::cuda::emulation
