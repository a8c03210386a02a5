#include "kernels/cuda/conv_library.h"

#include <cstring>

#include "kernels/cuda/conv.h"
#include "kernels/cuda/pool.h"

namespace oar::cuda {
namespace {

// All that a plan depends on.
std::vector<int64_t> key_of(const ImageOperation& o) {
  const WindowShape& s = o.window;
  int32_t alpha = 0, beta = 0;
  std::memcpy(&alpha, &o.alpha, sizeof alpha);
  std::memcpy(&beta, &o.beta, sizeof beta);
  return {s.N,
          s.H,
          s.W,
          s.OH,
          s.OW,
          s.KH,
          s.KW,
          s.stride_h,
          s.stride_w,
          s.dilation_h,
          s.dilation_w,
          s.pad_top,
          s.pad_left,
          s.pad_bottom,
          s.pad_right,
          o.C,
          o.M,
          o.groups,
          o.pool,
          o.taps_first,
          o.bias,
          o.residual,
          static_cast<int64_t>(o.epilogue),
          alpha,
          beta,
          static_cast<int64_t>(o.op),
          o.count_pads};
}

LibraryStatus said(CudaStatus status) {
  if (status.ok()) return {};
  return {status.code, std::string("our own kernel: ") + status.message()};
}

template <class Args>
ImageOperands operands_of(const Args& a, void* scratch) {
  ImageOperands o;
  o.out = a.out;
  o.x = a.x;
  o.workspace = scratch;
  if constexpr (requires { a.w; }) {
    o.w = a.w;
    o.bias = a.bias;
    o.residual = a.residual;
  }
  return o;
}

}  // namespace

std::unique_ptr<LibraryImages> LibraryImages::make(const CudnnApi& api, std::string* why) {
  auto cudnn = Cudnn::make(api, why);
  if (cudnn == nullptr) return nullptr;
  return std::unique_ptr<LibraryImages>(new LibraryImages(std::move(cudnn)));
}

ImagePlan* LibraryImages::plan_of(const ImageOperation& o) {
  std::vector<int64_t> key = key_of(o);
  const auto known = plans_.find(key);
  if (known != plans_.end()) return known->second.get();
  if (plans_.size() >= kMostPlans) return nullptr;
  LibraryStatus status;
  return plans_.emplace(std::move(key), cudnn_->prepare(o, kMostWorkspace, &status)).first->second.get();
}

LibraryStatus LibraryImages::run(const ConvArgs& a, void* scratch, Stream stream) {
  ImagePlan* plan = plan_of(operation_of(a));
  return plan != nullptr ? cudnn_->run(*plan, operands_of(a, scratch), stream) : said(conv(a, stream));
}
LibraryStatus LibraryImages::run(const DepthwiseArgs& a, void* scratch, Stream stream) {
  ImagePlan* plan = plan_of(operation_of(a));
  return plan != nullptr ? cudnn_->run(*plan, operands_of(a, scratch), stream) : said(depthwise(a, stream));
}
LibraryStatus LibraryImages::run(const PoolArgs& a, void* scratch, Stream stream) {
  ImagePlan* plan = plan_of(operation_of(a));
  return plan != nullptr ? cudnn_->run(*plan, operands_of(a, scratch), stream) : said(pool(a, stream));
}

}  // namespace oar::cuda
