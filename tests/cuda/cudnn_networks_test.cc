// Every operation graph of ResNet-50, MobileNetV3 and PP-OCR, by tables of their papers and as the engine
// asks a device for it, finalized by cuDNN's strict fake, and by the real library where that is installed.
#include <algorithm>
#include <filesystem>
#include <fstream>

#include "engine/graph/evaluate.h"
#include "engine/graph/pass.h"
#include "kernels/cuda/emulation/libraries.h"
#include "kernels/cuda/libraries/cudnn.h"
#include "tests/cuda/device_engine.h"
#include "tests/cuda/networks.h"
#include "tests/import/paddle_topology.h"
#include "tests/support/test_data.h"

using namespace oar;
using namespace oar::cuda;
using namespace oar_test;

namespace {

constexpr uint64_t kRoomyWorkspace = 1 << 30;
const float kGiven = 0;  // for "there is one"

std::string words(const ImageOperation& o) {
  const WindowShape& s = o.window;
  return cat("H ", s.H, " W ", s.W, " C ", o.C, " M ", o.M, " groups ", o.groups, " taps ", s.KH, " x ", s.KW,
             " strides ", s.stride_h, " x ", s.stride_w, o.pool ? " pool" : "");
}

ConvArgs layer_of(const WindowShape& s, int64_t C, int64_t M) {
  ConvArgs a;
  a.window = s;
  a.C = a.ldx = C;
  a.M = a.ldo = M;
  a.panel = 1;
  return a;
}

// All operations of a network, by what its layers are.
class Network {
 public:
  Network(int64_t batch, int64_t height, int64_t width, int64_t channels)
      : n_(batch), h_(height), w_(width), c_(channels) {}
  std::vector<ImageOperation> all;
  int64_t height() const { return h_; }
  int64_t width() const { return w_; }

  void conv(int64_t M, int64_t taps, int64_t stride, Epilogue act, bool residual = false) {
    add(M, taps, taps, stride, stride, act, residual, 1);
  }
  void depthwise(int64_t taps, int64_t stride_h, int64_t stride_w, Epilogue act) {
    add(c_, taps, taps, stride_h, stride_w, act, false, c_);
  }
  void pool(int64_t taps, int64_t stride, int64_t pad, PoolOp op) {
    PoolArgs a;
    a.window = sized(taps, taps, stride, stride, pad);
    a.C = c_;
    a.op = op;
    all.push_back(operation_of(a));
    h_ = a.window.OH;
    w_ = a.window.OW;
  }
  // Squeeze and excitation: the mean of each channel, and two layers over it. The image stays.
  void squeeze(int64_t part) {
    const Network before = *this;
    PoolArgs a;
    a.window = sized(1, 1, 1, 1, 0);
    a.window.KH = h_;
    a.window.KW = w_;
    a.window.OH = a.window.OW = 1;
    a.C = c_;
    a.op = PoolOp::kAverage;
    all.push_back(operation_of(a));
    h_ = w_ = 1;
    const int64_t whole = c_;
    conv(whole / part, 1, 1, Epilogue::kClamp);
    conv(whole, 1, 1, Epilogue::kHardSigmoid);
    h_ = before.h_;
    w_ = before.w_;
  }

 private:
  WindowShape sized(int64_t kh, int64_t kw, int64_t sh, int64_t sw, int64_t pad) const {
    WindowShape s;
    s.N = n_;
    s.H = h_;
    s.W = w_;
    s.KH = kh;
    s.KW = kw;
    s.stride_h = sh;
    s.stride_w = sw;
    s.pad_top = s.pad_left = s.pad_bottom = s.pad_right = pad;
    s.OH = (h_ + 2 * pad - kh) / sh + 1;
    s.OW = (w_ + 2 * pad - kw) / sw + 1;
    return s;
  }
  void add(int64_t M, int64_t kh, int64_t kw, int64_t sh, int64_t sw, Epilogue act, bool residual,
           int64_t groups) {
    const WindowShape s = sized(kh, kw, sh, sw, kh / 2);
    const auto rest = [&](auto& a) {
      a.window = s;
      a.bias = &kGiven;
      a.residual = residual ? &kGiven : nullptr;
      a.epilogue = act;
      a.alpha = act == Epilogue::kHardSwish ? 1 / 6.f : act == Epilogue::kHardSigmoid ? 0.2f : 0.f;
      a.beta = act == Epilogue::kClamp ? INFINITY : 0.5f;
    };
    if (groups > 1) {
      DepthwiseArgs a;
      a.C = c_;
      rest(a);
      all.push_back(operation_of(a));
    } else {
      ConvArgs a = layer_of(s, c_, M);
      rest(a);
      all.push_back(operation_of(a));
    }
    h_ = s.OH;
    w_ = s.OW;
    c_ = M;
  }
  int64_t n_, h_, w_, c_;
};

// https://arxiv.org/abs/1512.03385, table 1.
Network resnet50(int64_t batch) {
  Network n(batch, 224, 224, 3);
  n.conv(64, 7, 2, Epilogue::kClamp);
  n.pool(3, 2, 1, PoolOp::kMax);
  const int64_t blocks[] = {3, 4, 6, 3};
  for (int64_t stage = 0; stage < 4; ++stage) {
    const int64_t width = 64 << stage;
    for (int64_t b = 0; b < blocks[stage]; ++b) {
      const int64_t stride = b == 0 && stage > 0 ? 2 : 1;
      if (b == 0) {
        Network shortcut = n;
        shortcut.conv(4 * width, 1, stride, Epilogue::kNone);
        n.all = shortcut.all;
      }
      n.conv(width, 1, 1, Epilogue::kClamp);
      n.conv(width, 3, stride, Epilogue::kClamp);
      n.conv(4 * width, 1, 1, Epilogue::kClamp, true);
    }
  }
  n.pool(n.height(), 1, 0, PoolOp::kAverage);
  n.conv(1000, 1, 1, Epilogue::kNone);
  return n;
}

// https://arxiv.org/abs/1905.02244, table 1: taps, expansion, outputs, squeeze, hard swish, stride.
Network mobilenet_v3(int64_t batch) {
  struct Row {
    int64_t taps, expansion, outputs;
    bool squeeze, swish;
    int64_t stride;
  };
  constexpr Row kRows[] = {
      {3, 16, 16, false, false, 1}, {3, 64, 24, false, false, 2}, {3, 72, 24, false, false, 1},
      {5, 72, 40, true, false, 2},  {5, 120, 40, true, false, 1}, {5, 120, 40, true, false, 1},
      {3, 240, 80, false, true, 2}, {3, 200, 80, false, true, 1}, {3, 184, 80, false, true, 1},
      {3, 184, 80, false, true, 1}, {3, 480, 112, true, true, 1}, {3, 672, 112, true, true, 1},
      {5, 672, 160, true, true, 2}, {5, 960, 160, true, true, 1}, {5, 960, 160, true, true, 1}};
  Network n(batch, 224, 224, 3);
  n.conv(16, 3, 2, Epilogue::kHardSwish);
  int64_t inputs = 16;
  for (const Row& r : kRows) {
    const Epilogue act = r.swish ? Epilogue::kHardSwish : Epilogue::kClamp;
    if (r.expansion != inputs) n.conv(r.expansion, 1, 1, act);
    n.depthwise(r.taps, r.stride, r.stride, act);
    if (r.squeeze) n.squeeze(4);
    n.conv(r.outputs, 1, 1, Epilogue::kNone, r.stride == 1 && r.outputs == inputs);
    inputs = r.outputs;
  }
  n.conv(960, 1, 1, Epilogue::kHardSwish);
  n.pool(n.height(), 1, 0, PoolOp::kAverage);
  n.conv(1280, 1, 1, Epilogue::kHardSwish);
  n.conv(1000, 1, 1, Epilogue::kNone);
  return n;
}

// PP-OCR's networks are over this one, https://arxiv.org/abs/2109.15099, table 1: separable layers of taps,
// outputs, stride, squeeze. Detection reads the image, recognition lines of 48 pixels, whose width it keeps.
Network lcnet(int64_t height, int64_t width, bool lines) {
  struct Row {
    int64_t taps, outputs, stride;
    bool squeeze;
  };
  constexpr Row kRows[] = {{3, 32, 1, false},  {3, 64, 2, false},  {3, 64, 1, false},  {3, 128, 2, false},
                           {3, 128, 1, false}, {3, 256, 2, false}, {5, 256, 1, false}, {5, 256, 1, false},
                           {5, 256, 1, false}, {5, 256, 1, false}, {5, 256, 1, false}, {5, 512, 2, true},
                           {5, 512, 1, true}};
  Network n(1, height, width, 3);
  n.conv(16, 3, 2, Epilogue::kHardSwish);
  for (const Row& r : kRows) {
    n.depthwise(r.taps, r.stride, lines && r.stride == 2 && r.outputs > 64 ? 1 : r.stride,
                Epilogue::kHardSwish);
    if (r.squeeze) n.squeeze(4);
    n.conv(r.outputs, 1, 1, Epilogue::kHardSwish);
  }
  if (lines) {
    n.pool(n.height(), 1, 0, PoolOp::kAverage);
    n.conv(120, 1, 1, Epilogue::kSilu);
    return n;
  }
  n.conv(96, 1, 1, Epilogue::kNone);   // the neck's
  n.conv(24, 3, 1, Epilogue::kClamp);  // the head's
  n.conv(1, 1, 1, Epilogue::kSigmoid);
  return n;
}

// Notes what convolutions and pools a device is asked to plan.
class Recorder final : public WithoutCaptures {
 public:
  using WithoutCaptures::WithoutCaptures;
  std::vector<ImageOperation> all;

  Status plan(const Kernel& kernel, const void* args, KernelPlan* out) override {
    if (kernel.family == KernelFamily::kConv)
      all.push_back(operation_of(*static_cast<const ConvArgs*>(args)));
    if (kernel.family == KernelFamily::kDepthwise)
      all.push_back(operation_of(*static_cast<const DepthwiseArgs*>(args)));
    if (kernel.family == KernelFamily::kPool)
      all.push_back(operation_of(*static_cast<const PoolArgs*>(args)));
    return WithoutCaptures::plan(kernel, args, out);
  }
};

// What the engine asks a device for when an image of this shape is given; nothing is run.
std::vector<ImageOperation> planned(const ImportedModel& model, const Shape& image) {
  auto device = make_backend(options_on(kCudaPlugin));
  REQUIRE_OK(device);
  Recorder recorder(*device);
  REQUIRE_OK(run_passes(*model.graph, tensor_passes(Precision::kF32, recorder), {}));
  const auto evaluator = Evaluator::create(model.graph, recorder);
  REQUIRE_OK(evaluator);
  EvalOptions options;
  options.backend = &recorder.host();
  REQUIRE_OK((*evaluator)->size({Datum(must(Tensor::allocate(image, Format::f32())))}, options));
  return recorder.all;
}

struct Published {
  std::string name;
  std::vector<ImageOperation> all;
};

// PP-OCR's networks of every generation that is there, and what the repository has of them.
std::vector<Published> published_networks() {
  struct Case {
    const char* path;
    Shape image;
  };
  const Case own[] = {{"tests/data/ocr/det", {1, 3, 736, 736}},
                      {"tests/data/ocr/rec", {1, 3, 32, 320}},
                      {"tests/data/ocr/cls", {1, 3, 48, 192}}};
  const Case others[] = {{"paddle/v3_ch_det", {1, 3, 736, 736}},
                         {"paddle/v2_en_rec", {6, 3, 32, 320}},
                         {"paddle/v2_korean_rec", {1, 3, 32, 320}},
                         {"paddle/v2_cls", {6, 3, 48, 192}},
                         {"paddle/topology_only/ch_PP-OCRv4_det_infer", {1, 3, 736, 736}},
                         {"paddle/topology_only/ch_PP-OCRv4_rec_infer", {6, 3, 48, 320}},
                         {"paddle3_pir/topology_only/PP-OCRv5_mobile_det_infer", {1, 3, 736, 736}},
                         {"paddle3_pir/topology_only/PP-OCRv5_server_rec_infer", {1, 3, 48, 320}},
                         {"paddle3_pir/PP-LCNet_x0_25_textline_ori", {1, 3, 80, 160}},
                         {"paddle3_pir/topology_only/PP-LCNet_x1_0_doc_ori", {1, 3, 224, 224}}};
  std::vector<Published> out;
  for (const Case& c : own)
    out.push_back({c.path, planned(import_paddle_program(source_path(c.path)), c.image)});
  for (const Case& c : others)
    if (const auto path = data_path(c.path))
      out.push_back({c.path, planned(import_paddle_program(*path), c.image)});
  return out;
}

// What a graph can say of all networks; every other operation is refused for a reason of these, and few are.
std::vector<ImageOperation> operations() {
  std::vector<ImageOperation> all;
  for (const Network& n : {resnet50(1), resnet50(64), mobilenet_v3(1), mobilenet_v3(8),
                           lcnet(736, 736, false), lcnet(48, 320, true)})
    all.insert(all.end(), n.all.begin(), n.all.end());
  std::vector<Published> as_planned = published_networks();
  // The engine's own steps of ResNet-50 beside the paper's.
  const std::string bytes = Bottlenecks().bytes(224, 224, 64, {{64, 3}, {128, 4}, {256, 6}, {512, 3}}, 1000);
  as_planned.push_back({"ResNet-50", planned(import_test_model(bytes), {1, 3, 224, 224})});
  for (const Published& p : as_planned) {
    INFO(p.name);
    size_t refused = 0;
    for (const ImageOperation& o : p.all) {
      const char* why = o.refusal();
      if (why == nullptr) all.push_back(o);
      else ++refused;
      CHECK((why == nullptr || std::string(why) == "rows that are apart, or images by channels"));
    }
    // The first layer reads an image by channels, a transposed one writes rows that are apart.
    CAPTURE(refused, p.all.size());
    CHECK(p.all.size() >= 8);
    CHECK(refused <= 9);
  }
  return all;
}

}  // namespace

TEST_CASE("cuda libraries: every graph of ResNet-50, MobileNetV3 and PP-OCR is finalized by the fake") {
  int64_t graphs = 0, nodes = 0;
  for (const ImageOperation& o : operations()) {
    LibraryStatus status;
    const auto plan = ImagePlan::graph(emulation::fake_cudnn(), o, &status);
    INFO(words(o) << ": " << status.what);
    REQUIRE(plan != nullptr);
    ++graphs;
    nodes += plan->operations();
  }
  CHECK(resnet50(1).all.size() == 56);  // 53 convolutions, two pools, the last layer
  CHECK(graphs > 300);
  CHECK(nodes > 2 * graphs);
}

// ./dev gpu puts the description into a file; committed as tests/data/cudnn/*.json it has plans made of it
// here.
TEST_CASE("cuda libraries: the real cuDNN makes plans for the devices that were described") {
  namespace fs = std::filesystem;
  CudnnApi api;
  std::string why;
  if (!load_cudnn(&api, &why)) OAR_SKIP("no cuDNN: " + why);
  const fs::path folder = source_path("tests/data/cudnn");
  if (!fs::exists(folder)) OAR_SKIP("no description yet: ./dev gpu makes one where a device is");
  for (const auto& entry : fs::directory_iterator(folder)) {
    INFO(entry.path().filename().string());
    std::ifstream file(entry.path());
    const std::string json{std::istreambuf_iterator<char>(file), {}};
    const auto library = Cudnn::for_described(api, json, &why);
    INFO(why);
    REQUIRE(library != nullptr);
    for (const ImageOperation& o : operations()) {
      LibraryStatus status;
      const auto plan = library->prepare(o, kRoomyWorkspace, &status);
      INFO(words(o) << ": " << status.what);
      REQUIRE(plan != nullptr);
      std::string written;
      CHECK(library->write(*plan, &written).what == "");
      CHECK(written.size() > 2);
    }
  }
}

TEST_CASE(
    "cuda libraries: the real cuDNN, where it is installed, finalizes the same graphs without a device") {
  CudnnApi api;
  std::string why;
  if (!load_cudnn(&api, &why)) OAR_SKIP("no cuDNN: " + why);
  for (const ImageOperation& o : operations()) {
    LibraryStatus status;
    const auto plan = ImagePlan::graph(api, o, &status);
    INFO(words(o) << ": " << status.what);
    CHECK(plan != nullptr);
  }
  ImageOperation wrong = resnet50(1).all.front();
  wrong.window.OH = 5;  // fewer than there are
  LibraryStatus status;
  CHECK(ImagePlan::graph(api, wrong, &status) == nullptr);
  if (const auto library = Cudnn::make(api, &why); library == nullptr)
    CHECK_THAT(why, Contains("cudnnCreate: "));
}
