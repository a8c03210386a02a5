// Adapters through the C interface: slots, names, a generation's choice, and unloading while one runs.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/capi/fixture.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"

namespace {
using oar_test::greedy;
using oar_test::small_options;
namespace fs = std::filesystem;

// Of the demo model's first output projection, as PEFT saves one: every number of A and B is `number`.
std::string write_adapter(const std::string& name, float number, int64_t rank = 1) {
  const fs::path folder = fs::path(oar_test::temp_dir()) / name;
  fs::create_directories(folder);
  const std::string r = std::to_string(rank), half = std::to_string(rank * 1024),
                    all = std::to_string(rank * 2048);
  std::ofstream(folder / "adapter_config.json")
      << R"({"peft_type": "LORA", "base_model_name_or_path": "demo", "lora_alpha": 1, "r": )" << r << "}";
  const std::string module = "base_model.model.model.layers.0.self_attn.o_proj";
  const std::string header = "{\"" + module + R"(.lora_A.weight": {"dtype": "F32", "shape": [)" + r +
                             R"(, 256], "data_offsets": [0, )" + half + "]}, \"" + module +
                             R"(.lora_B.weight": {"dtype": "F32", "shape": [256, )" + r +
                             R"(], "data_offsets": [)" + half + ", " + all + "]}}";
  const uint64_t size = header.size();
  const std::vector<float> numbers(static_cast<size_t>(rank) * 512, number);
  std::ofstream out(folder / "adapter_model.safetensors", std::ios::binary);
  out.write(reinterpret_cast<const char*>(&size), sizeof size);
  out << header;
  out.write(reinterpret_cast<const char*>(numbers.data()), rank * 2048);
  return folder.string();
}

oar_model load_model(int64_t slots) {
  oar_model_options o = small_options();
  o.max_loras = slots;
  o.max_lora_rank = 2;
  oar_model model = 0;
  REQUIRE(oar_model_load(OAR_SOURCE_DIR "/configs/demo", &o, &model) == OAR_OK);
  return model;
}

oar_generation ask(oar_model model, const char* lora, int64_t tokens) {
  oar_sampling s = greedy(tokens);
  s.lora = lora;
  oar_generation g = 0;
  REQUIRE(oar_generate_text(model, "ROMEO:", &s, nullptr, nullptr, &g) == OAR_OK);
  return g;
}

std::string text_of(oar_generation g) {
  const oar_test::Answer a = oar_test::drain(g);
  CHECK(a.finish == OAR_FINISH_LENGTH);
  CHECK(oar_generation_close(g) == OAR_OK);
  return a.text;
}

std::string list(oar_model model) {
  size_t length = 0;
  REQUIRE(oar_model_list_loras(model, nullptr, 0, &length) == OAR_OK);
  std::string out(length + 1, '\0');
  REQUIRE(oar_model_list_loras(model, out.data(), out.size(), &length) == OAR_OK);
  out.resize(length);
  return out;
}

// The call failed so, and every word is in its message.
void refused(oar_status got, oar_status want, const std::vector<std::string>& words) {
  const std::string message = oar_last_error();
  INFO(message);
  CHECK(got == want);
  for (const std::string& word : words) CHECK(message.find(word) != std::string::npos);
}

TEST_CASE("adapters: generations choose by name and run together") {
  const oar_model model = load_model(2);
  const std::string strong = write_adapter("strong", 0.3f), weak = write_adapter("weak", 0.f, 2);
  const std::string plain = text_of(ask(oar_test::demo_model(), nullptr, 24));
  CHECK(list(model) == "[]");
  REQUIRE(oar_model_load_lora(model, "strong", strong.c_str()) == OAR_OK);
  REQUIRE(oar_model_load_lora(model, "weak", weak.c_str()) == OAR_OK);
  const std::string loaded = list(model);
  INFO(loaded);
  CHECK(loaded.find(R"({"name":"strong","path":")" + strong + R"(","rank":1,"base":"demo"})") !=
        std::string::npos);
  CHECK(loaded.find(R"("rank":2)") != std::string::npos);
  const oar_generation a = ask(model, "strong", 24), b = ask(model, nullptr, 24), c = ask(model, "weak", 24);
  CHECK(text_of(a) != plain);
  CHECK(text_of(b) == plain);
  CHECK(text_of(c) == plain);  // it adds zero

  oar_sampling older = greedy(24);  // a caller whose header has no `lora`
  older.lora = "nobody";
  older.struct_size = offsetof(oar_sampling, lora);
  oar_generation g = 0;
  REQUIRE(oar_generate_text(model, "ROMEO:", &older, nullptr, nullptr, &g) == OAR_OK);
  CHECK(text_of(g) == plain);
  CHECK(oar_model_close(model) == OAR_OK);
}

TEST_CASE("adapters: what is wrong is refused with the remedy") {
  const std::string folder = write_adapter("fine", 0.1f), large = write_adapter("large", 0.1f, 3);
  const oar_model model = load_model(1), bare = oar_test::demo_model();
  refused(oar_model_load_lora(model, "x", "/nowhere"), OAR_NOT_FOUND, {"/nowhere"});
  refused(oar_model_load_lora(model, "x", large.c_str()), OAR_INVALID_ARGUMENT,
          {"rank 3", "max_lora_rank 2"});
  refused(oar_model_load_lora(model, "", folder.c_str()), OAR_INVALID_ARGUMENT, {"name is empty"});
  refused(oar_model_load_lora(model, nullptr, folder.c_str()), OAR_INVALID_ARGUMENT, {"lora_name is NULL"});
  refused(oar_model_load_lora(model, "x", nullptr), OAR_INVALID_ARGUMENT, {"lora_path is NULL"});
  refused(oar_model_unload_lora(model, nullptr), OAR_INVALID_ARGUMENT, {"lora_name is NULL"});
  refused(oar_model_unload_lora(model, "x"), OAR_NOT_FOUND, {"'x'", "loaded: none"});
  CHECK(list(model) == "[]");
  REQUIRE(oar_model_load_lora(model, "one", folder.c_str()) == OAR_OK);
  refused(oar_model_load_lora(model, "one", folder.c_str()), OAR_ALREADY_EXISTS,
          {"'one'", "unload it first"});
  refused(oar_model_load_lora(model, "two", folder.c_str()), OAR_RESOURCE_EXHAUSTED,
          {"loaded: one", "unload one", "max_loras"});
  oar_sampling s = greedy(4);
  s.lora = "two";
  oar_generation g = 1;
  refused(oar_generate_text(model, "ROMEO:", &s, nullptr, nullptr, &g), OAR_NOT_FOUND,
          {"'two'", "loaded: one"});
  CHECK(std::string(oar_last_error_param()) == "lora");
  CHECK(g == 0);

  refused(oar_generate_text(bare, "ROMEO:", &s, nullptr, nullptr, &g), OAR_FAILED_PRECONDITION,
          {"max_loras"});
  refused(oar_model_load_lora(bare, "x", folder.c_str()), OAR_FAILED_PRECONDITION, {"max_loras"});
  refused(oar_model_unload_lora(bare, "x"), OAR_FAILED_PRECONDITION, {"max_loras"});
  CHECK(list(bare) == "[]");
  CHECK(oar_model_close(model) == OAR_OK);
  refused(oar_model_load_lora(model, "x", folder.c_str()), OAR_INVALID_ARGUMENT, {"model"});
}

TEST_CASE("adapters: slots and ranks out of range are refused by name") {
  const auto check = [](const char* param, int64_t slots, int64_t rank) {
    oar_model_options o = small_options();
    o.max_loras = slots;
    o.max_lora_rank = rank;
    oar_model model = 1;
    refused(oar_model_load(OAR_SOURCE_DIR "/configs/demo", &o, &model), OAR_INVALID_ARGUMENT, {param});
    CHECK(std::string(oar_last_error_param()) == param);
    CHECK(model == 0);
  };
  check("max_loras", -1, 0);
  check("max_loras", 1025, 0);
  check("max_lora_rank", 1, -1);
  check("max_lora_rank", 1, 513);
  check("max_lora_rank", 0, 8);
}

TEST_CASE("adapters: unloading leaves what runs as it is, and its slot to it") {
  const std::string folder = write_adapter("leaving", 0.3f), other = write_adapter("coming", 0.2f);
  const oar_model model = load_model(1);
  REQUIRE(oar_model_load_lora(model, "a", folder.c_str()) == OAR_OK);
  const std::string want = text_of(ask(model, "a", 200));
  const oar_generation running = ask(model, "a", 200);
  REQUIRE(oar_model_unload_lora(model, "a") == OAR_OK);
  CHECK(list(model) == "[]");
  CHECK(text_of(running) == want);
  // The engine lets the slot go after the last event is out.
  oar_status s = OAR_RESOURCE_EXHAUSTED;
  while (s == OAR_RESOURCE_EXHAUSTED) s = oar_model_load_lora(model, "a", other.c_str());
  REQUIRE(s == OAR_OK);
  CHECK(text_of(ask(model, "a", 200)) != want);  // no pages of the other adapter's prompt
  CHECK(oar_model_close(model) == OAR_OK);
}

TEST_CASE("adapters: threads load, ask and unload at once") {
  const std::string folder = write_adapter("shared", 0.3f);
  const oar_model model = load_model(4);
  const std::string plain = text_of(ask(model, nullptr, 12));
  REQUIRE(oar_model_load_lora(model, "stays", folder.c_str()) == OAR_OK);
  const std::string want = text_of(ask(model, "stays", 12));
  std::vector<int> wrong(3);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      const std::string name = "of" + std::to_string(t);
      const auto read = [&](const char* lora) {
        oar_sampling s = greedy(12);
        s.lora = lora;
        oar_generation g = 0;
        if (oar_generate_text(model, "ROMEO:", &s, nullptr, nullptr, &g) != OAR_OK) return std::string("?");
        if (lora != nullptr && lora == name && oar_model_unload_lora(model, lora) != OAR_OK) ++wrong[t];
        const std::string text = oar_test::drain(g).text;
        oar_generation_close(g);
        return text;
      };
      for (int i = 0; i < 6; ++i) {
        oar_status s = OAR_RESOURCE_EXHAUSTED;  // while the last one's slot is on its way back
        while (s == OAR_RESOURCE_EXHAUSTED) s = oar_model_load_lora(model, name.c_str(), folder.c_str());
        if (s != OAR_OK || read(name.c_str()) != want || read(nullptr) != plain || read("stays") != want)
          ++wrong[t];
      }
    });
  }
  for (std::thread& t : threads) t.join();
  CHECK(wrong == std::vector<int>(3));
  CHECK(list(model).find("of") == std::string::npos);
  CHECK(oar_model_close(model) == OAR_OK);
}

}  // namespace
