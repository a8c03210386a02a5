// The cache of prepared models: what it gives runs like what it was made of, damage and changed files are
// noticed, and weights are in memory once.
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "engine/base/format.h"
#include "engine/loader/sealed_file.h"
#include "engine/runtime/predictor.h"
#include "engine/runtime/prepared_model.h"
#include "tests/import/onnx_writer.h"
#include "tests/support/catch.h"
#include "tests/support/random.h"
#include "tests/support/test_data.h"

namespace {

using namespace oar;       // NOLINT
using namespace oar_test;  // NOLINT
namespace fs = std::filesystem;

// A folder with a model, a cache, and what was logged.
struct Kept {
  std::string folder = [] {
    static int number = 0;
    std::string path = cat(temp_dir(), "/prepared", number++);
    fs::create_directories(path);
    return path;
  }();
  std::string model = folder + "/model.onnx", cache = folder + "/cache";
  std::vector<std::pair<LogLevel, std::string>> logged;
  std::set<std::string> disabled;
  int threads = 1;
  uint64_t cache_bytes = kDefaultCacheBytes;

  void write(const Proto& graph) const { std::ofstream(model, std::ios::binary) << model_bytes(graph); }
  std::unique_ptr<Predictor> open() {
    logged.clear();
    PredictorOptions options;
    options.threads = threads;
    options.cache_dir = cache;
    options.cache_bytes = cache_bytes;
    options.disabled_passes = disabled;
    options.log.callback = [this](LogLevel level, std::string_view m) { logged.emplace_back(level, m); };
    auto p = Predictor::open(model, options);
    REQUIRE_OK(p);
    return std::move(*p);
  }
  bool was_logged(LogLevel level, const char* part) const {
    for (const auto& [l, m] : logged) {
      if (l == level && m.find(part) != std::string::npos) return true;
    }
    return false;
  }
  std::vector<std::string> entries() const {
    std::vector<std::string> out;
    for (const auto& e : fs::directory_iterator(cache + "/prepared")) out.push_back(e.path().string());
    return out;
  }
};

Proto convolutions(uint32_t seed) {
  const Proto pads =
      Proto().text(1, "pads").number(8, 1).number(8, 1).number(8, 1).number(8, 1).number(20, 7);
  return graph_proto(
      {node_proto("Conv", {"x", "w1", "b1"}, {"a"}, {pads}), node_proto("Relu", {"a"}, {"b"}),
       node_proto("Conv", {"b", "w2"}, {"c"}, {pads}), node_proto("Add", {"c", "b"}, {"d"}),
       node_proto("GlobalAveragePool", {"d"}, {"e"}), node_proto("Flatten", {"e"}, {"f"}),
       node_proto("MatMul", {"f", "w3"}, {"g"}), node_proto("Mul", {"g", "s"}, {"y"})},
      {tensor_proto("w1", {8, 3, 3, 3}, random_floats(216, seed)),
       tensor_proto("b1", {8}, random_floats(8, 2)), tensor_proto("w2", {8, 8, 3, 3}, random_floats(576, 3)),
       tensor_proto("w3", {8, 5}, random_floats(40, 4)), tensor_proto("s", {5}, random_floats(5, 5))},
      {value_proto("x", {-1, 3, 10, 10})}, {value_proto("y", {-1, 5})});
}
std::vector<float> answer(const Predictor& p, const Shape& shape = {2, 3, 10, 10}) {
  Tensor x = must(Tensor::allocate(shape, Format::f32()));
  const std::vector<float> v = random_floats(static_cast<size_t>(x.numel()), 77);
  std::copy(v.begin(), v.end(), x.mutable_values<float>().begin());
  const auto r = p.run(std::vector<Datum>{x});
  REQUIRE_OK(r);
  return {(*r)[0].tensor.values<float>().begin(), (*r)[0].tensor.values<float>().end()};
}

}  // namespace

TEST_CASE("prepared models: the second load maps the first one's graph and weights") {
  Kept kept;
  kept.write(convolutions(1));
  const auto first = kept.open();
  CHECK(kept.was_logged(LogLevel::kInfo, "is kept in"));
  REQUIRE(kept.entries().size() == 1);
  PredictorOptions plain;
  plain.threads = 1;
  const auto without = Predictor::open(kept.model, plain);
  REQUIRE_OK(without);
  const std::vector<float> expected = answer(**without);
  CHECK(answer(*first) == expected);
  const auto second = kept.open();
  CHECK(kept.logged.empty());
  CHECK(answer(*second) == expected);
  CHECK(second->summary() == (*without)->summary());
  CHECK(second->inputs()[0].to_string() == "x: f32[batch, 3, 10, 10]");
  CHECK(second->outputs()[0].name == "y");
  // Another choice of passes is another entry.
  kept.disabled = {"fuse_epilogues"};
  const auto other = kept.open();
  CHECK(kept.entries().size() == 2);
  CHECK(other->graph().nodes().size() > second->graph().nodes().size());
  kept.disabled = {"fuse_epilogue"};
  PredictorOptions wrong;
  wrong.cache_dir = kept.cache;
  wrong.disabled_passes = kept.disabled;
  CHECK_FALSE(Predictor::open(kept.model, wrong).ok());
}

TEST_CASE("prepared models: any number of threads prepares the same bytes") {
  // Weights that are worth threads, at addresses of every remainder in the file: names of 2, 3, 4 and 5
  // letters.
  std::vector<Proto> nodes, weights;
  std::string from = "x";
  for (const std::string name : {"w1", "w12", "w123", "w1234"}) {
    const Proto pads =
        Proto().text(1, "pads").number(8, 1).number(8, 1).number(8, 1).number(8, 1).number(20, 7);
    nodes.push_back(node_proto("Conv", {from, name}, {"c" + name}, {pads}));
    from = "c" + name;
    weights.push_back(
        tensor_proto(name, {256, 256, 3, 3}, random_floats(size_t{256} * 256 * 9, nodes.size())));
  }
  const Proto graph =
      graph_proto(nodes, weights, {value_proto("x", {-1, 256, 6, 6})}, {value_proto(from, {-1, 256, 6, 6})});
  // All but the header, which tells the model's path and time, and its sum.
  const auto tensors = [](const std::string& path) {
    std::string bytes;
    const auto file = open_sealed(path, 1);
    REQUIRE_OK(file);
    for (const auto& [name, t] : file->tensors) {
      bytes.append(static_cast<const char*>(t.data()), t.bytes());
    }
    return bytes;
  };
  std::string expected;
  for (const int threads : {1, 2, 3, 8}) {
    Kept kept;
    kept.threads = threads;
    kept.write(graph);
    kept.open();
    REQUIRE(kept.entries().size() == 1);
    const std::string bytes = tensors(kept.entries()[0]);
    if (threads == 1) expected = bytes;
    REQUIRE(bytes.size() > size_t{4} * 256 * 256 * 9 * 4);
    const bool same = bytes == expected;  // not CHECK()ed itself, which would print them
    CHECK(same);
  }
}

TEST_CASE("prepared models: a matrix that several nodes read is kept and held once") {
  constexpr int64_t kWide = 256;
  constexpr uint64_t kMatrix = kWide * kWide * sizeof(float);
  const auto products = [&](bool shared) {
    std::vector<Proto> nodes, weights;
    std::string from = "x";
    for (int k = 0; k < 3; ++k) {
      const std::string w = shared ? "w" : cat("w", k), to = k == 2 ? "y" : cat("h", k);
      nodes.push_back(node_proto("MatMul", {from, w}, {to}));
      if (k == 0 || !shared)
        weights.push_back(tensor_proto(w, {kWide, kWide}, random_floats(kWide * kWide, 5 + size_t(k))));
      from = to;
    }
    return graph_proto(nodes, weights, {value_proto("x", {-1, kWide})}, {value_proto("y", {-1, kWide})});
  };
  for (const bool shared : {true, false}) {
    INFO(shared);
    Kept kept;
    kept.write(products(shared));
    PredictorOptions plain;
    plain.threads = 1;
    const auto without = Predictor::open(kept.model, plain);
    REQUIRE_OK(without);
    (void)kept.open();
    REQUIRE(kept.entries().size() == 1);
    const uint64_t copies = shared ? 1 : 3;
    const uint64_t bytes = fs::file_size(kept.entries()[0]);
    CHECK(bytes >= copies * kMatrix);
    CHECK(bytes < (copies + 1) * kMatrix);
    plain.cache_dir = kept.cache;
    plain.resources.memory = MemoryBudget::make(uint64_t{64} << 20);
    const auto again = Predictor::open(kept.model, plain);
    REQUIRE_OK(again);
    CHECK(plain.resources.memory->reserved() >= copies * kMatrix);
    CHECK(plain.resources.memory->reserved() < (copies + 1) * kMatrix);
    CHECK((*again)->summary() == (*without)->summary());
    CHECK(answer(**again, {3, kWide}) == answer(**without, {3, kWide}));
  }
}

TEST_CASE("prepared models: a changed file is another model") {
  Kept kept;
  kept.write(convolutions(1));
  const std::vector<float> before = answer(*kept.open());
  kept.write(convolutions(9));
  PredictorOptions plain;
  plain.threads = 1;
  const std::vector<float> expected = answer(**Predictor::open(kept.model, plain));
  CHECK(expected != before);
  CHECK(answer(*kept.open()) == expected);
  CHECK(answer(*kept.open()) == expected);
}

TEST_CASE("prepared models: external data that changed is noticed") {
  Kept kept;
  const auto weights = [&](float value) {
    const std::vector<float> w(12, value);
    std::ofstream(kept.folder + "/w.bin", std::ios::binary)
        .write(reinterpret_cast<const char*>(w.data()), 12 * sizeof(float));
  };
  weights(1);
  Proto w;
  w.number(1, 3).number(1, 4).number(2, 1).text(8, "w").number(14, 1);
  w.message(13, Proto().text(1, "location").text(2, "w.bin"));
  kept.write(graph_proto({node_proto("MatMul", {"x", "w"}, {"y"})}, {w}, {value_proto("x", {-1, 3})},
                         {value_proto("y", {-1, 4})}));
  const std::vector<float> ones = answer(*kept.open(), {2, 3});
  CHECK(answer(*kept.open(), {2, 3}) == ones);
  CHECK(kept.logged.empty());
  weights(3);
  fs::last_write_time(kept.folder + "/w.bin", fs::file_time_type::clock::now() + std::chrono::seconds(5));
  const std::vector<float> threes = answer(*kept.open(), {2, 3});
  for (size_t k = 0; k < ones.size(); ++k) CHECK(std::abs(threes[k] - 3 * ones[k]) < 1e-5f);
  CHECK(answer(*kept.open(), {2, 3}) == threes);
  CHECK(kept.logged.empty());
}

TEST_CASE("prepared models: external data lies where the model does, wherever links lead") {
  const std::string root = cat(temp_dir(), "/links");
  for (const char* folder : {"/blobs", "/snapshots/1", "/m"}) fs::create_directories(root + folder);
  const std::vector<float> weights(12, 1.0f);
  for (const char* file : {"/blobs/w", "/secret.bin", "/m/own.bin"}) {
    std::ofstream(root + file, std::ios::binary)
        .write(reinterpret_cast<const char*>(weights.data()), 12 * sizeof(float));
  }
  const auto model = [&](const std::string& path, const char* location) {
    Proto w;
    w.number(1, 3).number(1, 4).number(2, 1).text(8, "w").number(14, 1);
    w.message(13, Proto().text(1, "location").text(2, location));
    std::ofstream(path, std::ios::binary)
        << model_bytes(graph_proto({node_proto("MatMul", {"x", "w"}, {"y"})}, {w},
                                   {value_proto("x", {-1, 3})}, {value_proto("y", {-1, 4})}));
  };
  PredictorOptions options;
  options.threads = 1;
  model(root + "/blobs/model", "model.onnx_data");
  fs::create_symlink("../../blobs/model", root + "/snapshots/1/model.onnx");
  fs::create_symlink("../../blobs/w", root + "/snapshots/1/model.onnx_data");
  CHECK(answer(**Predictor::open(root + "/snapshots/1/model.onnx", options), {2, 3}).size() == 8);
  fs::create_symlink("../secret.bin", root + "/m/link.bin");
  for (const auto& [location, loads] :
       {std::pair{"own.bin", true}, {"link.bin", false}, {"../secret.bin", false}, {"/etc/passwd", false}}) {
    CAPTURE(location);
    model(root + "/m/model.onnx", location);
    const auto p = Predictor::open(root + "/m/model.onnx", options);
    REQUIRE(p.ok() == loads);
    if (!loads)
      CHECK(p.status().message().find(cat("tensor 'w': external data '", location, "'")) !=
            std::string::npos);
  }
}

TEST_CASE("prepared models: 64 KB lost in the middle are noticed, and the oldest entries make room") {
  Kept kept;
  const auto wide = [&](uint32_t seed) {
    kept.write(graph_proto({node_proto("MatMul", {"x", "w"}, {"y"})},
                           {tensor_proto("w", {300, 1000}, random_floats(300'000, seed))},
                           {value_proto("x", {-1, 300})}, {value_proto("y", {-1, 1000})}));
  };
  wide(1);
  const std::vector<float> expected = answer(*kept.open(), {2, 300});
  const std::string entry = kept.entries().at(0);
  std::stringstream whole;
  whole << std::ifstream(entry, std::ios::binary).rdbuf();
  std::string bytes = whole.str();
  REQUIRE(bytes.size() > 1 << 20);
  std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(bytes.size() / 2), 64 << 10, '\0');
  fs::remove(entry);
  std::ofstream(entry, std::ios::binary) << bytes;
  std::ofstream(entry + ".tmp-1-0") << "of a process that was killed";
  CHECK(answer(*kept.open(), {2, 300}) == expected);
  CHECK(kept.was_logged(LogLevel::kWarning, "it is made anew"));
  CHECK(kept.entries() == std::vector<std::string>{entry});

  // Room for two entries: of three the one that was used longest ago goes.
  kept.cache_bytes = fs::file_size(entry) * 5 / 2;
  wide(2);
  kept.open();
  REQUIRE(kept.entries().size() == 2);
  const auto an_hour_ago = fs::file_time_type::clock::now() - std::chrono::hours(1);
  for (const std::string& e : kept.entries())
    fs::last_write_time(e, an_hour_ago - std::chrono::hours(e == entry));
  kept.open();  // the second one
  wide(3);
  kept.open();
  CHECK(kept.entries().size() == 2);
  CHECK_FALSE(fs::exists(entry));
  kept.cache_bytes = 1000;
  wide(4);
  kept.open();
  CHECK(kept.was_logged(LogLevel::kWarning, "the cache may have"));
  kept.cache_bytes = 0;
  kept.open();
  CHECK(kept.logged.empty());
}

TEST_CASE("prepared models: damaged entries are made anew, with a warning") {
  Kept kept;
  kept.write(convolutions(1));
  const std::vector<float> expected = answer(*kept.open());
  const std::string entry = kept.entries().at(0);
  std::stringstream whole;
  whole << std::ifstream(entry, std::ios::binary).rdbuf();
  const std::string bytes = whole.str();
  std::mt19937 random(8);
  int noticed = 0, tried = 0;
  const auto damage = [&](std::string with) {
    // A new file, as a crash or a disk leaves it: the old one may still be mapped.
    fs::remove(entry);
    std::ofstream(entry, std::ios::binary) << with;
    ++tried;
    const auto p = kept.open();
    noticed += kept.was_logged(LogLevel::kWarning, "it is made anew");
    REQUIRE(answer(*p) == expected);
    const auto again = kept.open();
    REQUIRE(kept.logged.empty());
    REQUIRE(answer(*again) == expected);
  };
  for (size_t at = 0; at < bytes.size(); at += 1 + bytes.size() / 60) damage(bytes.substr(0, at));
  CHECK(noticed == tried);
  for (int k = 0; k < 60; ++k) {
    std::string flipped = bytes;
    flipped[random() % bytes.size()] ^= static_cast<char>(1 << random() % 8);
    damage(std::move(flipped));
  }
  CHECK(noticed == tried);
  for (const auto& e : kept.entries()) CHECK(e.find(".tmp") == std::string::npos);
}

TEST_CASE(
    "prepared models: branches are kept, strings are not, and a cache that cannot be written is no error") {
  const auto branch = [](const char* op, const char* w) {
    return graph_proto({node_proto(op, {"x", w}, {cat("r", op)})}, {}, {}, {name_proto(cat("r", op))});
  };
  Kept kept;
  kept.write(graph_proto({node_proto("If", {"c"}, {"y"},
                                     {graph_attr("then_branch", branch("MatMul", "w")),
                                      graph_attr("else_branch", branch("Sub", "s"))})},
                         {tensor_proto("w", {3, 3}, random_floats(9, 1)), tensor_proto("s", {3}, {1, 2, 3})},
                         {value_proto("c", {}, 9), value_proto("x", {-1, 3})}, {value_proto("y", {-1, 3})}));
  const auto run = [](const Predictor& p, bool c) {
    Tensor flag = must(allocate_elements({}, DType::kBool));
    *mutable_elements<uint8_t>(flag) = c;
    Tensor x = must(Tensor::zeros({2, 3}, Format::f32()));
    x.mutable_values<float>()[1] = 2;
    const auto r = p.run(std::vector<Datum>{flag, x});
    REQUIRE_OK(r);
    return std::vector<float>((*r)[0].tensor.values<float>().begin(), (*r)[0].tensor.values<float>().end());
  };
  const auto first = kept.open();
  CHECK(kept.was_logged(LogLevel::kInfo, "is kept in"));
  const auto second = kept.open();
  CHECK(kept.logged.empty());
  for (bool c : {false, true}) CHECK(run(*first, c) == run(*second, c));
  CHECK(run(*second, false) == std::vector<float>{-1, 0, -3, -1, -2, -3});

  Kept nowhere;
  nowhere.write(convolutions(1));
  nowhere.cache = nowhere.model + "/cache";  // below a file
  const auto p = nowhere.open();
  CHECK(nowhere.was_logged(LogLevel::kWarning, "cannot be kept"));
  CHECK(answer(*p).size() == 10);
}

TEST_CASE("prepared models: packed weights replace those of the file in memory") {
  Kept kept;
  kept.write(convolutions(1));
  PredictorOptions plain;
  plain.threads = 1;
  const auto p = Predictor::open(kept.model, plain);
  REQUIRE_OK(p);
  uint64_t left = 0, hollow = 0;
  for (size_t v = 0; v < (*p)->graph().num_values(); ++v) {
    const Value& value = (*p)->graph().value(static_cast<ValueId>(v));
    if (value.kind != ValueKind::kConstant) continue;
    left += value.constant.bytes();
    hollow += !value.constant.has_bytes();
  }
  // Biases and shapes stay; the 216 + 576 + 40 weights do not.
  CHECK(left < 400);
  CHECK(hollow >= 3);
  CHECK(answer(**p).size() == 10);
}
