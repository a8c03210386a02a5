// Shapes, buffers, tensors and mapped files.
#include "engine/tensor/tensor.h"

#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "engine/tensor/embedded_files.h"
#include "engine/tensor/mapped_file.h"
#include "engine/tensor/model_file.h"
#include "tests/loader/builders.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"

namespace oar {
namespace {

using oar_test::temp_dir;
using oar_test::write_file;

TEST_CASE("shapes") {
  const Shape s{2, 3, 4};
  CHECK(s.rank() == 3);
  CHECK(s.numel() == 24);
  CHECK(s.rows() == 6);
  CHECK(s.cols() == 4);
  CHECK(s.to_string() == "[2, 3, 4]");
  CHECK(Shape{}.numel() == 1);
  CHECK(Shape{}.cols() == 1);
  CHECK(Shape{}.to_string() == "[]");
  CHECK(s == Shape{2, 3, 4});
  CHECK_FALSE(s == Shape{2, 3});
  CHECK_FALSE(s == Shape{2, 3, 5});
  CHECK_FALSE(Shape({int64_t{1} << 32, int64_t{1} << 31}).checked_numel().has_value());
  CHECK(Shape({INT64_MAX, 1}).checked_numel() == INT64_MAX);
  CHECK(Shape({INT64_MAX, INT64_MAX, 0}).checked_numel() == 0);  // a zero anywhere means no elements
}

TEST_CASE("tensor sizes are exact or refused") {
  CHECK(*tensor_bytes({2, 64}, *Format::find("q8_0")) == 136);
  CHECK(*tensor_bytes({}, Format::f32()) == 4);
  CHECK(*tensor_bytes({0, 3}, Format::f32()) == 0);
  CHECK_FALSE(tensor_bytes({2, 33}, *Format::find("q8_0")).ok());
  CHECK_FALSE(tensor_bytes({int64_t{1} << 31, int64_t{1} << 31}, Format::f32()).ok());
  CHECK_FALSE(tensor_bytes({INT64_MAX}, Format::f16()).ok());
  // An axis of zero does not excuse a row that overflows, whichever comes first.
  CHECK_FALSE(tensor_bytes({0, INT64_MAX}, Format::f32()).ok());
}

TEST_CASE("rows of nothing are converted at once, however many") {
  const auto t = Tensor::allocate({int64_t{1} << 62, 0}, Format::f16());
  REQUIRE(t.ok());
  const auto f = to_f32(*t);
  REQUIRE(f.ok());
  CHECK(f->shape() == t->shape());
}

TEST_CASE("tensors share, slice and reshape their bytes") {
  auto made = Tensor::zeros({4, 3}, Format::f32());
  REQUIRE_OK(made);
  const Tensor t = *made;
  REQUIRE(reinterpret_cast<uintptr_t>(t.data()) % Buffer::kAlignment == 0);
  const auto values = t.mutable_values<float>();
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const Tensor middle = t.slice(1, 3);
  CHECK(middle.shape() == Shape{2, 3});
  CHECK(middle.values<float>()[0] == 3.0f);
  CHECK(middle.bytes() == 24);
  CHECK(t.slice(4, 4).bytes() == 0);
  const auto flat = middle.reshape({6});
  REQUIRE_OK(flat);
  CHECK(flat->values<float>()[5] == 8.0f);
  CHECK_FALSE(middle.reshape({5}).ok());
  CHECK_FALSE(middle.reshape({INT64_MAX, INT64_MAX}).ok());
  CHECK_FALSE(Tensor().defined());

  const auto bf = Tensor::allocate({2}, Format::bf16());
  REQUIRE_OK(bf);
  bf->mutable_values<bf16>()[0] = to_bf16(1.5f);
  bf->mutable_values<bf16>()[1] = to_bf16(-2.0f);
  const auto wide = to_f32(*bf);
  REQUIRE_OK(wide);
  CHECK(wide->values<float>()[0] == 1.5f);
  CHECK(wide->values<float>()[1] == -2.0f);

  CHECK_FALSE(Tensor::make({5}, Format::f32(), t.slice(0, 1).buffer()).ok());
  CHECK_FALSE(Tensor::allocate({int64_t{1} << 60}, Format::f32()).ok());
}

TEST_CASE("a buffer lives as long as its last view") {
  auto owner = std::make_shared<int>(0);
  std::weak_ptr<int> watch = owner;
  static char bytes[8];
  Buffer whole = Buffer::wrap_const(bytes, 8, std::move(owner));
  Buffer part = whole.slice(2, 4);
  whole = Buffer();
  CHECK_FALSE(watch.expired());
  CHECK_FALSE(part.writable());
  part = Buffer();
  CHECK(watch.expired());
}

TEST_CASE("mapped and read files have the same bytes") {
  const std::string path = temp_dir() + "/bytes";
  std::string content(100000, 'x');
  content[0] = 'a';
  content.back() = 'z';
  write_file(path, content);
  for (bool mmap : {true, false}) {
    CAPTURE(mmap);
    uint64_t reported = 0;
    const auto file =
        MappedFile::open(path, {.mmap = mmap, .progress = [&](std::string_view, uint64_t done, uint64_t) {
                                  reported = done;
                                  return true;
                                }});
    REQUIRE_OK(file);
    CHECK((*file)->mapped() == mmap);
    CHECK(reported == content.size());
    REQUIRE((*file)->size() == content.size());
    CHECK(memcmp((*file)->data(), content.data(), content.size()) == 0);
    REQUIRE_OK((*file)->still_whole());
    const Buffer tail = file_slice(*file, 99999, 1);
    CHECK(*static_cast<const char*>(tail.data()) == 'z');
  }
  const auto cancelled = MappedFile::open(path, {.progress = [](auto, auto, auto) { return false; }});
  REQUIRE_FALSE(cancelled.ok());
  CHECK(cancelled.status().code() == StatusCode::kCancelled);
}

TEST_CASE("an embedded file is used where it lies") {
  static const std::string config = R"({"a": 1})", weights(5000, 'w');
  const auto file = [](const char* path, const std::string& bytes) {
    return EmbeddedFile{path, reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()};
  };
  const EmbeddedFile files[] = {file("embedded:m/weights", weights), file("embedded:m/config.json", config)};
  CHECK_FALSE(is_folder("embedded:m"));
  set_embedded_files(files);
  CHECK(is_folder("embedded:m"));
  CHECK(files_in("embedded:m") == std::vector<std::string>{"config.json", "weights"});
  CHECK(is_regular_file("embedded:m/config.json"));
  CHECK(read_small_file("embedded:m/config.json", 100).value() == config);
  CHECK(read_small_file("embedded:m/config.json", 2).status().code() == StatusCode::kResourceExhausted);
  for (const bool mmap : {true, false}) {
    CAPTURE(mmap);
    const auto opened = MappedFile::open("embedded:m/weights", {.mmap = mmap});
    REQUIRE_OK(opened);
    CHECK((*opened)->mapped() == mmap);
    CHECK(((*opened)->data() == files[0].data) == mmap);
    REQUIRE((*opened)->size() == weights.size());
    CHECK(memcmp((*opened)->data(), weights.data(), weights.size()) == 0);
    REQUIRE_OK((*opened)->still_whole());
  }
  for (const char* other :
       {"embedded:m", "embedded:", "embedded:m/", "embedded:m/none", "embedded:m2/weights"}) {
    CAPTURE(other);
    CHECK_FALSE(is_regular_file(other));
    CHECK(MappedFile::open(other).status().code() == StatusCode::kNotFound);
    CHECK(read_small_file(other, 100).status().code() == StatusCode::kNotFound);
  }
  set_embedded_files({});
}

TEST_CASE("a file that shrinks under its mapping is noticed") {
  const std::string path = temp_dir() + "/shrinks";
  write_file(path, std::string(10000, 'x'));
  const auto file = MappedFile::open(path);
  REQUIRE_OK(file);
  REQUIRE(truncate(path.c_str(), 5000) == 0);
  const Status s = (*file)->still_whole();
  CHECK(s.code() == StatusCode::kDataLoss);
  CHECK_THAT(s.message(), oar_test::Contains("10000") && oar_test::Contains("5000"));
}

TEST_CASE("files that a model names lie with the model, wherever links lead") {
  namespace fs = std::filesystem;
  const std::string root = temp_dir() + "/named";
  for (const char* folder : {"/m/below", "/mm", "/blobs", "/snapshots/1"})
    fs::create_directories(root + folder);
  for (const char* file :
       {"/m/model", "/m/w", "/m/below/w", "/mm/w", "/secret.bin", "/blobs/a", "/blobs/b"}) {
    write_file(root + file, file);
  }
  fs::create_symlink("../secret.bin", root + "/m/link.bin");
  fs::create_symlink("below/w", root + "/m/inside");
  fs::create_symlink("../mm", root + "/m/folder");
  // As the Hugging Face cache has it: names are links into one folder of contents.
  fs::create_symlink("../../blobs/a", root + "/snapshots/1/model");
  fs::create_symlink("../../blobs/b", root + "/snapshots/1/w");
  fs::create_symlink("../../secret.bin", root + "/snapshots/1/out");
  const auto named = [&](const char* model, const std::string& file) {
    return file_of_model(root + model, file);
  };
  const std::string real = fs::canonical(root).string();
  CHECK(named("/m/model", "w").value() == real + "/m/w");
  CHECK(named("/m/model", "./below/../w").value() == real + "/m/w");
  CHECK(named("/m/model", "inside").value() == real + "/m/below/w");
  CHECK(named("/m", "below/w").value() == real + "/m/below/w");
  CHECK(named("/snapshots/1/model", "w").value() == real + "/blobs/b");
  for (const auto& [model, file] : {std::pair{"/m/model", "link.bin"},
                                    {"/m/model", "../secret.bin"},
                                    {"/m/model", "folder/w"},
                                    {"/m/model", "../mm/w"},
                                    {"/m", "link.bin"},
                                    {"/snapshots/1/model", "out"},
                                    {"/snapshots/1", "w"},
                                    {"/m/model", ""}}) {
    CAPTURE(model, file);
    CHECK(named(model, file).status().code() == StatusCode::kInvalidArgument);
  }
  CHECK(named("/m/model", real + "/secret.bin").status().code() == StatusCode::kInvalidArgument);
  CHECK(named("/m/model", std::string("w\0", 2)).status().code() == StatusCode::kInvalidArgument);
  CHECK(named("/m/model", "absent").status().code() == StatusCode::kNotFound);
}

TEST_CASE("files that cannot be opened say why") {
  const auto missing = MappedFile::open(temp_dir() + "/missing");
  REQUIRE_FALSE(missing.ok());
  CHECK(missing.status().code() == StatusCode::kNotFound);
  CHECK_THAT(missing.status().message(),
             oar_test::Contains("/missing") && oar_test::Contains("No such file"));
  CHECK(MappedFile::open(temp_dir()).status().code() == StatusCode::kInvalidArgument);
  CHECK(MappedFile::open(std::string("a\0b", 3)).status().code() == StatusCode::kInvalidArgument);
  CHECK(MappedFile::open("/dev/null").status().code() == StatusCode::kInvalidArgument);
  const std::string empty = temp_dir() + "/empty";
  write_file(empty, "");
  const auto file = MappedFile::open(empty);
  REQUIRE_OK(file);
  CHECK((*file)->size() == 0);
  CHECK(read_small_file(empty, 0).value().empty());
  write_file(empty, "12345");
  CHECK(read_small_file(empty, 5).value() == "12345");
  CHECK(read_small_file(empty, 4).status().code() == StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace oar
