// oar repository: makes folders of models for `oar serve`.
#include <cstdio>

#include "clients/cli/command.h"
#include "clients/cli/ocr_steps.h"

namespace oar::cli {
namespace {

struct OcrRepository {
  TextReaderOptions reader;
  std::string folder;
};

int make_ocr(const OcrRepository& o) {
  if (const Status s = write_ocr_repository(o.folder, o.reader); !s.ok()) return fail(s);
  std::printf("%s: serve it with `oar serve %s`; the models to ask are ocr and ocr_file\n", o.folder.c_str(),
              o.folder.c_str());
  return kSuccess;
}

}  // namespace

void add_repository(CLI::App& app, Action& action) {
  CLI::App* top = app.add_subcommand("repository", "Make a folder of models for `oar serve`");
  top->require_subcommand(1);
  auto o = std::make_shared<OcrRepository>();
  CLI::App* c = top->add_subcommand("ocr", "A detector and a recognizer of text as one served model");
  c->add_option("folder", o->folder, "new folder")->required()->type_name("DIR");
  c->add_option("--det", o->reader.detector, "text detector (Paddle or ONNX)")
      ->required()
      ->type_name("MODEL");
  add_ocr_options(*c, o->reader);
  c->footer(
      "Example:\n  oar repository ocr ./models --det ch_PP-OCRv3_det_infer --rec en_PP-OCRv3_rec_infer "
      "--dict "
      "en_dict.txt\n  oar serve ./models");
  c->callback([o, &action] { action = [o] { return make_ocr(*o); }; });
}

}  // namespace oar::cli
