// C++: several answers at once, the handles owned by objects, errors as exceptions of the program's own.
// c++ -std=c++17 parallel.cc $(pkg-config --cflags --libs oar) -o parallel; ./parallel demo
#include <oar.h>

#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

void check(oar_status status, const char* what) {
  if (status != OAR_OK) throw std::runtime_error(std::string(what) + ": " + oar_last_error());
}

struct Model {
  explicit Model(const char* path) { check(oar_model_load(path, nullptr, &handle), "load"); }
  ~Model() { oar_model_close(handle); }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;
  oar_model handle = 0;
};

class Answer {
 public:
  Answer(const Model& model, const std::string& prompt, const oar_sampling& sampling) {
    const auto append = [](const oar_event* event, void* self) {
      static_cast<Answer*>(self)->text.append(event->text, event->text_length);
      return 0;
    };
    check(oar_generate_text(model.handle, prompt.c_str(), &sampling, append, this, &handle_), "generate");
  }
  ~Answer() { oar_generation_close(handle_); }
  Answer(const Answer&) = delete;
  Answer& operator=(const Answer&) = delete;
  const std::string& wait() {
    check(oar_generation_wait(handle_, -1), "wait");
    return text;
  }

 private:
  std::string text;
  oar_generation handle_ = 0;
};

}  // namespace

int main(int argc, char** argv) try {
  const Model model(argc > 1 ? argv[1] : "demo");
  oar_sampling sampling;
  check(oar_sampling_init(&sampling, sizeof sampling), "sampling");
  sampling.max_tokens = 24;
  sampling.temperature = 0;
  std::vector<std::unique_ptr<Answer>> answers;  // the engine runs them as one batch
  for (const char* prompt : {"To be", "The king", "My lord", "Good morrow"})
    answers.push_back(std::make_unique<Answer>(model, prompt, sampling));
  for (const auto& answer : answers) std::printf("%s\n---\n", answer->wait().c_str());
  oar_model_stats stats;
  check(oar_model_get_stats(model.handle, &stats, sizeof stats), "stats");
  std::printf("%llu tokens in %llu steps\n", static_cast<unsigned long long>(stats.generation_tokens),
              static_cast<unsigned long long>(stats.steps));
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
