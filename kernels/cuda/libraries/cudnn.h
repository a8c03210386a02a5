// Convolutions and pools by cuDNN's operation graphs (libcudnn.so.9, the backend API of 9.0 and newer):
//
//   out = activation(conv(x, w) + bias + residual), as kernels/conv.h has it     out = pool(x)
//
// in f32, channels together, one graph for one convolution with all that follows it. Its header is not part
// of the toolkit, so what is used is declared here: https://docs.nvidia.com/deeplearning/cudnn, "Backend
// API". A graph is checked whole, shapes and all, without a device. A plan of how to run it wants one, or the
// library's description of one; it can be written down, and read where such a device is.
//
// Of the engines that the library proposes, those are passed over that round operands to fewer bits or add in
// an order of the moment. What is left computes in f32.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/conv.h"
#include "kernels/cuda/libraries/library.h"
#include "kernels/cuda/status.h"

namespace oar::cuda {

using CudnnResult = int;        // cudnnStatus_t; 0: success
using CudnnDescriptor = void*;  // cudnnBackendDescriptor_t
struct CudnnContext;            // cudnnContext

// The functions that are used, by the names of the library; enumerations are ints there too.
struct CudnnApi {
  CudnnResult (*Create)(CudnnContext**);
  CudnnResult (*Destroy)(CudnnContext*);
  CudnnResult (*SetStream)(CudnnContext*, Stream);
  const char* (*GetErrorString)(CudnnResult);
  CudnnResult (*BackendCreateDescriptor)(int type, CudnnDescriptor*);
  CudnnResult (*BackendDestroyDescriptor)(CudnnDescriptor);
  CudnnResult (*BackendFinalize)(CudnnDescriptor);
  CudnnResult (*BackendSetAttribute)(CudnnDescriptor, int name, int type, int64_t count, const void*);
  CudnnResult (*BackendGetAttribute)(CudnnDescriptor, int name, int type, int64_t room, int64_t* count,
                                     void*);
  CudnnResult (*BackendExecute)(CudnnContext*, CudnnDescriptor plan, CudnnDescriptor variant_pack);
};
// The library's own. False: it is not there, or too old; *why says which.
bool load_cudnn(CudnnApi* api, std::string* why);

// What the header's enumerations say, as far as it is used (cudnn_graph.h of 9.19).
namespace cudnn {
// cudnnBackendDescriptorType_t
inline constexpr int kPointwise = 0, kConvolution = 1, kEngine = 2, kEngineConfig = 3, kHeuristics = 4,
                     kPlan = 5, kConvolutionForward = 10, kPointwiseOperation = 13, kOperationGraph = 15,
                     kVariantPack = 16, kTensor = 17, kResample = 24, kResampleForward = 25,
                     kDeviceProperties = 38;
// cudnnBackendAttributeType_t
inline constexpr int kTypeHandle = 0, kTypeDataType = 1, kTypeBool = 2, kTypeInt64 = 3, kTypeFloat = 4,
                     kTypeDouble = 5, kTypePointer = 6, kTypeConvolutionMode = 7, kTypeHeuristicsMode = 8,
                     kTypeNumericalNote = 11, kTypePointwiseMode = 14, kTypeDescriptor = 15,
                     kTypeResampleMode = 21, kTypePaddingMode = 22, kTypeChar = 24;
// cudnnBackendAttributeName_t
inline constexpr int kPointwiseMode = 0, kPointwisePrecision = 1, kReluLower = 3, kReluUpper = 4,
                     kReluSlope = 5, kSwishBeta = 8, kConvolutionType = 100, kConvolutionMode = 101,
                     kDilations = 102, kStrides = 103, kPostPaddings = 104, kPrePaddings = 105,
                     kSpatialDims = 106, kHeuristicsMode = 200, kHeuristicsGraph = 201,
                     kHeuristicsResults = 202, kHeuristicsDevice = 204, kConfigEngine = 300,
                     kPlanHandle = 400, kPlanConfig = 401, kPlanWorkspace = 402, kPlanJson = 405,
                     kPlanDevice = 407, kConvAlpha = 700, kConvBeta = 701, kConvDescriptor = 702,
                     kConvW = 703, kConvX = 704, kConvY = 705, kOperationPointwise = 750, kOperationX = 751,
                     kOperationB = 752, kOperationY = 753, kGraphHandle = 800, kGraphOps = 801,
                     kTensorAlignment = 900, kTensorType = 901, kTensorDims = 902, kTensorStrides = 903,
                     kTensorId = 906, kTensorVirtual = 907, kTensorByValue = 908, kPackIds = 1000,
                     kPackPointers = 1001, kPackWorkspace = 1003, kEngineNotes = 1303,
                     kResampleModeName = 1700, kResampleType = 1701, kResampleSpatialDims = 1702,
                     kResamplePostPaddings = 1703, kResamplePrePaddings = 1704, kResampleStrides = 1705,
                     kResampleWindow = 1706, kResamplePadding = 1708, kResampleX = 1710, kResampleY = 1711,
                     kResampleDescriptor = 1716, kPropertiesHandle = 2701, kPropertiesJson = 2702;
// Values of the others.
inline constexpr int kFloat = 0, kCrossCorrelation = 1, kModeA = 3;
inline constexpr int kAdd = 0, kMul = 1, kRelu = 100, kTanh = 101, kSigmoid = 102, kGelu = 104, kSwish = 106,
                     kGeluTanh = 107;
inline constexpr int kMaxPool = 3, kAveragePool = 2, kAveragePoolWithoutPads = 4, kZeroPad = 0,
                     kLowestPad = 1;
inline constexpr int kNoteDownConverts = 1, kNoteReducedReduction = 2, kNoteNondeterministic = 4,
                     kNoteTensorCore = 0;
}  // namespace cudnn

// One convolution with what follows, or one pool; sizes only.
struct ImageOperation {
  WindowShape window;
  int64_t C = 0, M = 0, groups = 1;  // of a pool M is C
  bool pool = false;
  // Filters (M, KH, KW, C / groups); with `taps_first`, of channels by themselves, (KH, KW, C).
  bool taps_first = false;
  bool bias = false, residual = false;
  Epilogue epilogue = Epilogue::kNone;
  float alpha = 0.f, beta = 0.f;
  PoolOp op = PoolOp::kMax;
  bool count_pads = false;

  // Null: a graph can say it. Else what it cannot.
  const char* refusal() const;
};
ImageOperation operation_of(const ConvArgs& args);
ImageOperation operation_of(const DepthwiseArgs& args);
ImageOperation operation_of(const PoolArgs& args);

// Device memory, each pointer a multiple of 16. out may be residual.
struct ImageOperands {
  float* out = nullptr;
  const float *x = nullptr, *w = nullptr, *bias = nullptr, *residual = nullptr;
  void* workspace = nullptr;  // of ImagePlan::workspace_bytes(), a multiple of 256
};

// The operation's graph, finalized, and on a device a plan of how to run it. Not for two threads at once.
class ImagePlan {
 public:
  ~ImagePlan();
  ImagePlan(const ImagePlan&) = delete;
  ImagePlan& operator=(const ImagePlan&) = delete;

  // Builds and finalizes the graph, with a handle where it is to run; the library checks every shape. Null
  // and *status: it refuses. The api outlives it.
  static std::unique_ptr<ImagePlan> graph(const CudnnApi& api, const ImageOperation& operation,
                                          LibraryStatus* status, CudnnContext* handle = nullptr);
  uint64_t workspace_bytes() const { return workspace_; }
  int operations() const { return static_cast<int>(operations_.size()); }  // nodes of the graph

 private:
  friend class Cudnn;
  struct Layout {
    int64_t dims[4], strides[4];
  };
  explicit ImagePlan(const CudnnApi& api) : api_(api) {}
  LibraryStatus make(int type, CudnnDescriptor* descriptor);
  LibraryStatus set(CudnnDescriptor descriptor, int name, int type, int64_t count, const void* value);
  LibraryStatus finalize(CudnnDescriptor descriptor);
  LibraryStatus tensor(int64_t id, const Layout& layout, bool is_virtual, bool by_value,
                       CudnnDescriptor* out);
  LibraryStatus convolve(const ImageOperation& o, CudnnDescriptor x, CudnnDescriptor y);
  LibraryStatus pool(const ImageOperation& o, CudnnDescriptor x, CudnnDescriptor y);
  LibraryStatus pointwise(int mode, const ImageOperation* clips, CudnnDescriptor x, CudnnDescriptor b,
                          CudnnDescriptor y);
  LibraryStatus build(const ImageOperation& o);

  const CudnnApi& api_;
  std::vector<CudnnDescriptor> all_;  // destroyed from the last one on
  std::vector<CudnnDescriptor> operations_;
  CudnnDescriptor graph_ = nullptr, plan_ = nullptr;
  float alpha_ = 0.f, beta_ = 0.f;  // read by the graph where it runs
  std::vector<int64_t> ids_;        // of what a run brings, below
  uint64_t workspace_ = 0;
};

// One device's handle, the current device of the thread that makes it; or a device's description alone. Not
// for two threads at once.
class Cudnn {
 public:
  // Null: the library has no handle here (without a device it has none); *why says its status.
  static std::unique_ptr<Cudnn> make(const CudnnApi& api, std::string* why);
  // For the device that `json` describes (describe_device() there): plans are made and written, none runs.
  static std::unique_ptr<Cudnn> for_described(const CudnnApi& api, const std::string& json, std::string* why);
  ~Cudnn();
  Cudnn(const Cudnn&) = delete;
  Cudnn& operator=(const Cudnn&) = delete;

  // The graph with the first plan that fits the workspace and computes in f32. Null and *status: the library
  // has none, or the operation is none that it takes; our own kernels do it then.
  std::unique_ptr<ImagePlan> prepare(const ImageOperation& operation, uint64_t workspace_bytes,
                                     LibraryStatus* status);
  // How the library describes the device, as JSON: by it a machine without one can make plans for it.
  LibraryStatus describe_device(std::string* json);
  // A plan as JSON; and the plan that was written of such an operation, to run on this device. Null and
  // *status: it is none for it.
  LibraryStatus write(ImagePlan& plan, std::string* json);
  std::unique_ptr<ImagePlan> read(const ImageOperation& operation, const std::string& json,
                                  LibraryStatus* status);
  // Puts it on the stream, which may be captured.
  LibraryStatus run(ImagePlan& plan, const ImageOperands& operands, Stream stream);

 private:
  Cudnn(const CudnnApi& api, CudnnContext* handle) : api_(api), handle_(handle) {}
  LibraryStatus choose(ImagePlan& plan, uint64_t workspace_bytes);
  LibraryStatus workspace_of(CudnnDescriptor plan, uint64_t* bytes);
  LibraryStatus text_of(CudnnDescriptor descriptor, int name, const char* what, std::string* text);
  CudnnApi api_;
  CudnnContext* handle_;                 // null: described_ is there
  CudnnDescriptor described_ = nullptr;  // finalized
};

}  // namespace oar::cuda
