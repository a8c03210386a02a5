// Networks over images: against PyTorch's numbers (tests/golden/generate_image_training.py), what comes out,
// what is refused.
#include <cmath>
#include <functional>

#include "tests/train/image_network.h"
#include "tests/train/one_op.h"

#include <set>

#include "engine/base/format.h"
#include "engine/graph/passes/grad.h"
#include "engine/graph/reference.h"
#include "engine/ops/train/ops.h"
#include "engine/runtime/predictor.h"

using namespace oar;
using namespace oar::train;
using namespace oar_test;

namespace {

namespace fs = std::filesystem;

StepReport image_step(ImageTrainer& t) {
  auto r = t.step();
  INFO((r.ok() ? std::string() : r.status().message()));
  REQUIRE(r.ok());
  return *r;
}

const json::object& object_at(const ImageRun& run, const char* key) { return run.golden.at(key).as_object(); }

// The gradients of one micro-batch of all images, by parameter.
std::map<std::string, Tensor> first_gradients(const ImageRun& run) {
  const ImportedModel model = import_model(run.options.model).value();
  const Shape shape{run.whole("images"), 3, run.whole("side"), run.whole("side")};
  const auto made = build_image_graphs(model, shape, {}, {});
  INFO((made.ok() ? std::string() : made.status().message()));
  REQUIRE(made.ok());
  const auto set = ImageSet::open(run.options.data, "--data", run.options.images);
  REQUIRE(set.ok());
  ImageForm form{3, static_cast<int>(shape[2]), static_cast<int>(shape[3]), {}, {}};
  for (const json::value& v : run.golden.at("mean").as_array()) form.mean.push_back(v.to_number<float>());
  for (const json::value& v : run.golden.at("std").as_array()) form.std.push_back(v.to_number<float>());
  Tensor pixels = Tensor::zeros(shape, Format::f32()).value();
  std::vector<int32_t> targets;
  for (size_t k = 0; k < set->size(); ++k) {
    REQUIRE(set->read(k, form, pixels.mutable_values<float>().data() + static_cast<int64_t>(k) * form.numel())
                .ok());
    targets.push_back(set->label(k));
  }
  auto backend = cpu(1);
  const auto evaluator = Evaluator::create(made->step, *backend).value();
  EvalOptions o;
  o.backend = backend.get();
  std::vector<Tensor> states, sums;
  for (const ValueId v : made->constants) states.push_back(made->network.value(v).constant);
  for (const Parameter& p : made->parameters) sums.push_back(Tensor::zeros(p.shape, Format::f32()).value());
  states.insert(states.end(), sums.begin(), sums.end());
  o.states = states;
  const float each = 1.0f / static_cast<float>(shape[0]);
  const auto results = evaluator->run({Datum(pixels), Datum(i32(targets)), datum_of(each).value()}, o);
  INFO((results.ok() ? std::string() : results.status().message()));
  REQUIRE(results.ok());
  std::map<std::string, Tensor> out;
  for (size_t k = 0; k < sums.size(); ++k) out[made->parameters[k].name] = sums[k];
  return out;
}

std::string image_refusal(const ImageRun& run) {
  const auto t = ImageTrainer::create(run.options, {});
  REQUIRE_FALSE(t.ok());
  return t.status().message();
}

void write_file_of(const std::string& path, std::initializer_list<uint32_t> head, size_t bytes) {
  std::string out;
  for (const uint32_t word : head)
    for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(word >> shift & 255);
  for (size_t k = 0; k < bytes; ++k) out += static_cast<char>(k % 7);
  std::ofstream(path, std::ios::binary) << out;
}

}  // namespace

TEST_CASE("gradients of a ResNet in training are PyTorch's") {
  const ImageRun run("gradients");
  const auto got = first_gradients(run);
  const json::object& want = object_at(run, "gradients");
  REQUIRE(got.size() == want.size());
  double most = 0;
  for (const auto& [name, numbers] : want) most = std::max(most, numbers.at(0).to_number<double>());
  for (const auto& [name, t] : got) {
    INFO(name);
    double norm = 0, product = 0;
    const auto v = t.values<float>();
    for (size_t k = 0; k < v.size(); ++k) {
      norm += static_cast<double>(v[k]) * v[k];
      product += v[k] * std::cos(0.9 * static_cast<double>(k) + 0.3);
    }
    const json::value& numbers = want.at(name);
    // 2^-24 a rounding, over some hundred of them.
    CHECK(std::abs(std::sqrt(norm) - numbers.at(0).to_number<double>()) < 1e-5 * most);
    CHECK(std::abs(product - numbers.at(1).to_number<double>()) < 1e-5 * most);
  }
}

TEST_CASE("a ResNet's losses and averages are PyTorch's, and it learns a batch by heart") {
  const ImageRun run("curve");
  auto t = run.trainer();
  const double bound = std::max(1e-5, 4 * run.number("loss spread")),
               norms = std::max(1e-5, 4 * run.number("norm spread"));
  double worst = 0, worst_norm = 0, loss = 1;
  for (int64_t k = 0; k < run.whole("steps"); ++k) {
    const StepReport r = image_step(*t);
    const auto at = [&](const char* key) {
      return run.golden.at(key).at(static_cast<size_t>(k)).to_number<double>();
    };
    worst = std::max(worst, std::abs(r.loss - at("loss")) / bound);
    worst_norm = std::max(worst_norm, std::abs(r.norm - at("norm")) / norms);
    CHECK(r.rows == run.whole("images"));
    if (k > 0) continue;
    REQUIRE(t->statistics().size() == object_at(run, "averages").size());
    for (const auto& s : t->statistics()) {
      INFO(s.name);
      const json::array& want = object_at(run, "averages").at(s.name).as_array();
      for (size_t j = 0; j < want.size(); ++j)
        CHECK(std::abs(s.value.values<float>()[j] - want[j].to_number<double>()) < 2e-6);
    }
  }
  CHECK(worst < 1);
  CHECK(worst_norm < 1);
  ImageRun faster("by heart");
  faster.options.rate = 5e-3;
  t = faster.trainer();
  while (loss >= 0.01 && t->done() < 300) loss = image_step(*t).loss;
  CHECK(loss < 0.01);
}

TEST_CASE("images: a part of a network in doubles is trained, and said once") {
  const ImageRun plain("floats");
  ImageRun run("doubles");
  ImportedModel model = import_model(run.options.model).value();
  OpWriter w(*model.graph);
  Node& last = model.graph->nodes().back();
  REQUIRE(last.is("linear"));
  const ValueId before = last.inputs[0];
  const size_t at = model.graph->nodes().size() - 1;
  const Val wide = w.op("cast", {Val{before}}, {{"to", std::string("f64")}});
  const Val back = w.op("cast", {w.op("add", {wide, wide})}, {{"to", std::string("f32")}});
  const Val half = w.op("mul", {back, w.constant(f32({}, {0.5f}), "half")});
  model.graph->nodes()[at].inputs[0] = half.id;
  model.graph->sort();
  REQUIRE(export_onnx(model, run.options.model).ok());
  auto a = plain.trainer(), b = run.trainer();
  const auto told = [](const ImageTrainer& t) {
    const auto notes = t.notes();
    return std::count_if(notes.begin(), notes.end(), [](const std::string& n) {
      return n.find(" results of a step are f64, by loops without kernels: ") != std::string::npos;
    });
  };
  CHECK(told(*a) == 0);
  CHECK(told(*b) == 1);
  for (int k = 0; k < 3; ++k) CHECK(std::abs(image_step(*a).loss - image_step(*b).loss) < 1e-5);
}

TEST_CASE("dropout of a network is not applied, though it be on in the file") {
  const ImageRun plain("undropped");
  ImageRun run("dropped");
  ImportedModel model = import_model(run.options.model).value();
  OpWriter w(*model.graph);
  const size_t at = model.graph->nodes().size() - 1;
  REQUIRE(model.graph->nodes()[at].is("linear"));
  const Val before{model.graph->nodes()[at].inputs[0]};
  Tensor on = Tensor::zeros({}, Format::of(DType::kBool)).value();
  *static_cast<uint8_t*>(on.mutable_data()) = 1;
  const Val kept = w.op("dropout", {before, w.float_scalar(0.5), w.constant(on)});
  model.graph->nodes()[at].inputs[0] = kept.id;
  model.graph->sort();
  REQUIRE(export_onnx(model, run.options.model).ok());
  const auto want = first_gradients(plain), got = first_gradients(run);
  REQUIRE(got.size() == want.size());
  for (const auto& [name, t] : want) CHECK(same_bits(got.at(name), t));
}

TEST_CASE("a network's own softmax is left to the loss") {
  const ImageRun plain("plain"), softmax("softmax", "Softmax");
  auto a = plain.trainer(), b = softmax.trainer();
  for (int k = 0; k < 3; ++k) CHECK(image_step(*a).loss == image_step(*b).loss);
}

TEST_CASE("what comes out runs as it was evaluated, for inference") {
  ImageRun run("result");
  run.options.held_out = run.options.data;
  run.options.images.batch = 3;  // 8 images: the last batch is padded
  auto t = run.trainer();
  for (int k = 0; k < 40; ++k) (void)image_step(*t);
  const HeldOutReport report = t->evaluate().value();
  const std::string out = run.folder + "/out.onnx";
  REQUIRE(t->write_result(out).ok());
  const auto predictor = Predictor::open(out, {});
  INFO((predictor.ok() ? std::string() : predictor.status().message()));
  REQUIRE(predictor.ok());
  double loss = 0;
  int hits = 0;
  for (size_t k = 0; k < t->held_out().size(); ++k) {
    Tensor x = Tensor::zeros({1, 3, t->form().height, t->form().width}, Format::f32()).value();
    REQUIRE(t->held_out().read(k, t->form(), x.mutable_values<float>().data()).ok());
    const auto y = (*predictor)->run({Datum(x)});
    REQUIRE(y.ok());
    const auto scores = (*y)[0].tensor.values<float>();
    const auto label = static_cast<size_t>(t->held_out().label(k));
    double sum = 0;
    for (const float s : scores) sum += std::exp(static_cast<double>(s));
    loss += std::log(sum) - scores[label];
    hits += std::max_element(scores.begin(), scores.end()) == scores.begin() + static_cast<ptrdiff_t>(label);
  }
  CHECK(std::abs(loss / 8 - report.loss) < 1e-4);
  CHECK(hits / 8.0 == report.accuracy);
  const auto metadata = import_model(out).value().metadata;
  CHECK(std::find(metadata.begin(), metadata.end(),
                  std::pair<std::string, std::string>("classes", R"(["c0","c1","c2","c3"])")) !=
        metadata.end());
  // And is trained further.
  run.options.model = out;
  CHECK(image_step(*run.trainer()).loss < image_step(*ImageRun("again").trainer()).loss);
}

TEST_CASE("images: the same bits for any number of threads, and behind a checkpoint") {
  ImageRun run("bits");
  run.options.images.batch = 3;
  run.options.accumulate = 2;
  run.options.hold_out = 2;
  auto whole = run.trainer(), first = run.trainer();
  CHECK(whole->data().size() == 6);
  CHECK(whole->held_out().size() == 2);
  for (int k = 0; k < 5; ++k) (void)image_step(*whole);
  for (int k = 0; k < 2; ++k) (void)image_step(*first);
  const std::string path = run.folder + "/checkpoint";
  REQUIRE(first->save(path, {}).ok());
  run.options.threads = 3;
  auto second = run.trainer();
  REQUIRE(second->restore(path).ok());
  for (int k = 0; k < 3; ++k) (void)image_step(*second);
  for (size_t k = 0; k < whole->parameters().size(); ++k) {
    INFO(whole->parameters()[k].name);
    CHECK(same_bits(whole->value(k), second->value(k)));
  }
  for (size_t k = 0; k < whole->statistics().size(); ++k)
    CHECK(same_bits(whole->statistics()[k].value, second->statistics()[k].value));
  run.options.images.batch = 2;
  const auto other = run.trainer()->restore(path);
  REQUIRE_FALSE(other.ok());
  CHECK(other.status().message().find("'batch': 3, now 2") != std::string::npos);
}

TEST_CASE("images: the same bits where parameters are updated as their gradients come") {
  ImageRun run("at_once");
  std::vector<std::unique_ptr<ImageTrainer>> both;
  for (const double clip : {0.0, 1e30}) {
    run.options.clip = clip;
    both.push_back(run.trainer());
  }
  CHECK(both[0]->memory().gradients == 0);
  for (int k = 0; k < 3; ++k) CHECK(image_step(*both[0]).loss == image_step(*both[1]).loss);
  for (size_t k = 0; k < both[0]->parameters().size(); ++k) {
    INFO(both[0]->parameters()[k].name);
    CHECK(same_bits(both[0]->value(k), both[1]->value(k)));
  }
}

TEST_CASE("what --freeze names stays, and a frozen batch norm is that of inference") {
  ImageRun run("freeze");
  run.options.graph.freeze = {"conv1.*", "bn1.*"};
  auto t = run.trainer();
  const ImportedModel before = import_model(run.options.model).value();
  (void)image_step(*t);
  REQUIRE(t->write_result(run.folder + "/out.onnx").ok());
  const ImportedModel after = import_model(run.folder + "/out.onnx").value();
  std::map<std::string, Tensor> was;
  for (size_t v = 0; v < before.graph->num_values(); ++v) {
    const Value& value = before.graph->value(static_cast<ValueId>(v));
    if (value.kind == ValueKind::kConstant && value.constant.format() == Format::f32())
      was[value.name] = value.constant;
  }
  size_t same = 0, moved = 0;
  for (size_t v = 0; v < after.graph->num_values(); ++v) {
    const Value& value = after.graph->value(static_cast<ValueId>(v));
    if (value.kind != ValueKind::kConstant || !was.contains(value.name)) continue;
    const bool frozen = value.name.starts_with("conv1.") || value.name.starts_with("bn1.");
    INFO(value.name);
    CHECK(same_bits(value.constant, was.at(value.name)) == frozen);
    ++(frozen ? same : moved);
  }
  CHECK(same == 5);
  CHECK(moved == 32);  // 6 convolutions, 6 norms of four, and the last layer's two
}

TEST_CASE("equal vectors that a file shares are trained apart") {
  ImageRun run("shared");
  ImportedModel model = import_model(run.options.model).value();
  Graph& g = *model.graph;
  const ValueId one = passes::find_value(g, "layer1.0.bn1.weight").value(),
                two = passes::find_value(g, "layer1.0.bn2.weight").value();
  g.replace_uses(two, one);
  run.options.model = run.folder + "/shared.onnx";
  REQUIRE(export_onnx(model, run.options.model).ok());
  auto t = run.trainer();
  CHECK(t->parameters().size() == object_at(run, "gradients").size());
  std::set<std::string> names;
  for (const Parameter& p : t->parameters()) names.insert(p.name);
  CHECK(names.size() == t->parameters().size());
  for (int k = 0; k < 2; ++k) (void)image_step(*t);
  REQUIRE(t->write_result(run.folder + "/out.onnx").ok());
  const ImportedModel after = import_model(run.folder + "/out.onnx").value();
  const auto value = [&](const char* name) {
    return after.graph->value(passes::find_value(*after.graph, name).value()).constant;
  };
  CHECK_FALSE(same_bits(value("layer1.0.bn1.weight"), value("layer1.0.bn1.weight.2")));
}

TEST_CASE("batch norm's numbers and its way back are those of the definition") {
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0.5f, 2);
  const auto values = [&](const Shape& s) {
    std::vector<float> v(static_cast<size_t>(s.numel()));
    for (float& x : v) x = normal(random);
    return f32(s, v);
  };
  for (const Shape& shape :
       {Shape{4, 3, 5, 7}, Shape{1, 1, 3}, Shape{9, 2}, Shape{2, 17, 1, 33}, Shape{3, 70, 16, 16}}) {
    INFO(shape.to_string());
    const Shape channel{shape[1]};
    const Tensor x = values(shape), scale = values(channel), shift = values(channel), dy = values(shape);
    const auto type = [](const Tensor& t) {
      return TensorType{Format::f32(), DimVector(t.shape().begin(), t.shape().end())};
    };
    std::map<std::string, HostValue> given;
    const auto input = [&](Graph& g, const char* name, const Tensor& t) {
      given[name] = host_value(t).value();
      return Val{g.add_input(name, type(t))};
    };
    // In double.
    Graph d;
    Builder b(d);
    const Val in[] = {input(d, "x", x), input(d, "scale", scale), input(d, "shift", shift),
                      b.constant("", Tensor::zeros(channel, Format::f32()).value()),
                      b.constant("", Tensor::zeros(channel, Format::f32()).value())};
    auto made = find_op("batch_norm")
                    ->define(b, std::span<const Val>(in),
                             {{"training_mode", int64_t{1}}, {"momentum", 0.0}, {"epsilon", 1e-5}});
    REQUIRE(b.status().ok());
    for (size_t k = 0; k < 3; ++k) d.add_output(cat("y", k), made[k].id);
    const ValueId outputs[] = {made[0].id}, wanted[] = {in[0].id, in[1].id, in[2].id};
    const ValueId seed = input(d, "dy", dy).id;
    const auto want =
        evaluate_reference(passes::grad(d, outputs, wanted, {.seeds = {seed}}).value(), given).value();
    // By the op, on every instruction set.
    Graph g;
    Builder ours(g);
    const Val own[] = {input(g, "x", x), input(g, "scale", scale), input(g, "shift", shift)};
    const auto y = emit(ours, op_batch_statistics_norm, own, {{"epsilon", 1e-5}});
    for (const Val v : y) g.add_output("", v.id);
    const ValueId out[] = {y[0].id}, leaves[] = {own[0].id, own[1].id, own[2].id};
    const ValueId by = input(g, "dy", dy).id;
    const Graph back = passes::grad(g, out, leaves, {.seeds = {by}}).value();
    const std::vector<Datum> operands{guarded(x), guarded(scale), guarded(shift), guarded(dy)};
    std::vector<Datum> first;
    for (const auto& [isa, threads] : runs()) {
      INFO(isa_name(isa) << ", threads " << threads);
      const auto got = run_guarded(back, operands, {}, threads, isa);
      REQUIRE_OK(got);
      REQUIRE(got->size() == 6);
      if (threads == 1) first = *got;
      const char* names[] = {"y0", "y1", "y2", "grad/x", "grad/scale", "grad/shift"};
      for (size_t k = 0; k < 6; ++k) {
        INFO(names[k]);
        CHECK(same_bits((*got)[k].tensor, first[k].tensor));
        const std::vector<double>& v = want.at(names[k]).f;
        double size = 1;
        for (const double e : v) size = std::max(size, std::abs(e));
        // Some roundings of the largest; a channel of few equal numbers multiplies them by 1 / sqrt(epsilon).
        CHECK(farthest((*got)[k].tensor, v) < size * (shape[0] * shape[1] == 1 ? 1e-4 : 2e-6));
      }
    }
  }
}

TEST_CASE("IDX files: images, their classes, and what is wrong with them") {
  const std::string folder = temp_dir() + "/idx";
  fs::create_directories(folder);
  const std::string images = folder + "/a-images-idx3-ubyte", labels = folder + "/a-labels-idx1-ubyte";
  write_file_of(images, {0x803, 5, 4, 6}, 120);
  write_file_of(labels, {0x801, 5}, 5);
  const auto set = ImageSet::open({images}, "--data", {});
  REQUIRE(set.ok());
  CHECK(set->size() == 5);
  CHECK(set->classes() == std::vector<std::string>{"0", "1", "2", "3", "4"});
  CHECK(set->label(3) == 3);
  CHECK(set->name(3) == "a-images-idx3-ubyte[3]");
  const ImageForm form{1, 4, 6, {0.5f}, {0.25f}};
  std::vector<float> pixels(24);
  REQUIRE(set->read(1, form, pixels.data()).ok());
  for (size_t k = 0; k < 24; ++k) CHECK(pixels[k] == (static_cast<float>((24 + k) % 7) / 255 - 0.5f) / 0.25f);
  const auto fails = [&](const std::string& path, const char* words) {
    const auto r = ImageSet::open({path}, "--data", {});
    REQUIRE_FALSE(r.ok());
    INFO(r.status().message());
    CHECK(r.status().message().find(words) != std::string::npos);
  };
  fails(folder, "decodes no image files");
  fails(folder + "/none", "none");
  fails(images + ".gz", "gunzip");
  fails(labels, "is no IDX file of images");
  write_file_of(folder + "/b-images-idx3-ubyte", {0x803, 5, 4, 6}, 119);
  fails(folder + "/b-images-idx3-ubyte", "has 135 bytes where its head says 136");
  write_file_of(folder + "/c-images-idx3-ubyte", {0x803, 0xffffffff, 0xffffffff, 0xffffffff}, 120);
  fails(folder + "/c-images-idx3-ubyte", "cannot hold");
  write_file_of(folder + "/d-images-idx3-ubyte", {0x803, 0, 4, 6}, 0);
  fails(folder + "/d-images-idx3-ubyte", "extent 0 is 0");
  write_file_of(folder + "/e-images-idx3-ubyte", {0x803, 5, 4, 6}, 120);
  fails(folder + "/e-images-idx3-ubyte", "e-labels-idx1-ubyte");
  write_file_of(folder + "/e-labels-idx1-ubyte", {0x801, 4}, 4);
  fails(folder + "/e-images-idx3-ubyte", "has 5 images");
  write_file_of(folder + "/pictures", {0x803, 5, 4, 6}, 120);
  fails(folder + "/pictures", "its name has no 'images'");
}

TEST_CASE("images: what would fit, another resume, and a loss that is no number are named") {
  ImageRun run("bad");
  const uint64_t all = run.trainer()->memory().to_get();
  TrainerOptions half = run.options;
  half.images.batch /= 2;
  const uint64_t less = ImageTrainer::create(half, {}).value()->memory().to_get();
  REQUIRE(less < all);
  const TrainerOptions good = run.options;
  run.options.may_take = all - 1;
  INFO(image_refusal(run));
  CHECK(image_refusal(run).find(cat("; --batch ", half.images.batch, " --accumulate 2 would fit")) !=
        std::string::npos);
  run.options.may_take = 1000;
  CHECK(image_refusal(run).find("no micro-batch that the network takes would fit") != std::string::npos);
  run.options = good;
  // Without data, with as many held-out images as wanted, it says what it would take.
  run.options.data.clear();
  CHECK(run.trainer()->memory().to_get() == all);
  run.options.hold_out = 2;
  CHECK(run.trainer()->memory().to_get() > all);
  run.options = good;
  run.options.hold_out = 2;
  auto t = run.trainer();
  step(*t);
  const std::string path = run.folder + "/run.safetensors";
  REQUIRE(t->save(path, {}).ok());
  using Change = std::function<void(TrainerOptions&)>;
  const std::vector<std::pair<const char*, Change>> changes{
      {"data", [](auto& o) { o.hold_out = 3; }},
      {"batch", [](auto& o) { o.images.batch = 4; }},
      {"mean",
       [](auto& o) {
         o.images.mean = {0, 0, 0};
       }},
      {"std",
       [](auto& o) {
         o.images.std = {1, 1, 1};
       }},
      {"bgr", [](auto& o) { o.images.bgr = true; }},
      {"stretch", [](auto& o) { o.images.stretch = true; }},
      {"freeze", [](auto& o) { o.graph.freeze = {"conv1.*"}; }}};
  for (const auto& [named, change] : changes) {
    ImageRun changed = run;
    change(changed.options);
    const Status s = changed.trainer()->restore(path).status();
    INFO(named << ": " << s.message());
    CHECK(s.message().find(cat("another '", named, "'")) != std::string::npos);
  }
  const auto v = t->value(0).values<float>();
  std::fill_n(const_cast<float*>(v.data()), v.size(), NAN);
  for (const Status& s : {t->evaluate().status(), t->step().status()}) {
    INFO(s.message());
    CHECK(s.message().find("the first op whose result has such is conv of '") != std::string::npos);
    CHECK(s.message().find(".png") != std::string::npos);
  }
}

TEST_CASE("networks and images that cannot be trained are refused by name") {
  ImageRun run("refused");
  const auto says = [](const std::string& message, const char* words) {
    INFO(message);
    CHECK(message.find(words) != std::string::npos);
  };
  const TrainerOptions good = run.options;
  run.options.graph.freeze = {"conv9.*"};
  says(image_refusal(run), "--freeze conv9.* matches no parameter");
  run.options.graph.freeze = {"*"};
  says(image_refusal(run), "leaves no parameter");
  run.options = good, run.options.graph.full = false;
  says(image_refusal(run), "--full");
  run.options = good, run.options.images.mean = {0.5f};
  says(image_refusal(run), "each of the network's 3 channels");
  run.options = good, run.options.images.size = 20;
  says(image_refusal(run), "--size 20: the network's images are 12 x 12");
  for (const double hold_out : {8.0, 0.01}) {
    run.options = good, run.options.hold_out = hold_out;
    says(image_refusal(run), "of 8 images leaves none");
  }
  fs::create_directories(run.folder + "/data/c9");
  run.options = good;
  says(image_refusal(run), "folder 'c9' has no .jpg, .jpeg or .png file");
  std::ofstream(run.folder + "/data/c9/a.png") << "decoded by name";
  says(image_refusal(run), "--data has 5 classes, the network scores 4");
  run.options.data = {run.folder};  // folders of folders of folders: classes are "data" alone
  CHECK(run.trainer()->data().classes() == std::vector<std::string>{"data"});
  // A layer whose weights are computed.
  ImportedModel model = import_model(run.options.model).value();
  Graph& g = *model.graph;
  OpWriter w(g);
  const ValueId weight = passes::find_value(g, "conv1.weight").value();
  const Val twice = w.op("add", {Val{weight}, Val{weight}});
  for (Node& n : g.nodes())
    if (n.is("conv") && n.inputs[1] == weight) n.inputs[1] = twice.id;
  g.sort();
  run.options = good, run.options.model = run.folder + "/computed.onnx";
  REQUIRE(export_onnx(model, run.options.model).ok());
  says(image_refusal(run), "reads weights that are computed");
}
