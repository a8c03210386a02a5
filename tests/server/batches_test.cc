// /v1/files and /v1/batches over HTTP: forms, states, files of answers and of errors, owners, bounds, a
// server that stops in the middle and the next that goes on.
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "engine/base/format.h"
#include "server/api/batch_lines.h"
#include "server/http/multipart.h"
#include "tests/server/raw_client.h"
#include "tests/server/test_server.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"

namespace {

using namespace oar_test;  // NOLINT
using oar::cat;
using oar::json::object;
using oar::json::value;
namespace fs = std::filesystem;

std::string str(const value& v) { return std::string(v.as_string()); }

// A folder of its own for each call.
std::string fresh_folder() {
  static int n = 0;
  const fs::path folder = fs::path(temp_dir()) / cat("batches-", ++n);
  fs::remove_all(folder);
  return folder.string();
}

oar::ServerOptions with_files(const std::string& folder) {
  oar::ServerOptions o;
  o.files = folder;
  return o;
}

FakeEngineOptions engine_of(const char* reply) {
  FakeEngineOptions o;
  o.reply = reply;
  return o;
}

constexpr const char* kForm = "multipart/form-data; boundary=\"XyZ\"";

std::string form(const std::string& content, const std::string& more = "", const char* purpose = "batch") {
  return cat("--XyZ\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\n", purpose, "\r\n", more,
             "--XyZ\r\nContent-Disposition: form-data; name=\"file\"; filename=\"in.jsonl\"\r\n"
             "Content-Type: application/octet-stream\r\n\r\n",
             content, "\r\n--XyZ--\r\n");
}

struct Client {
  int port;
  std::string key;
  HttpReply ask(const char* method, const std::string& path, const std::string& body = {},
                const char* type = "application/json") const {
    Headers headers{{"Content-Type", type}};
    if (!key.empty()) headers.emplace_back("Authorization", "Bearer " + key);
    return http(port, method, path, body, headers);
  }
  value get(const std::string& path) const {
    const HttpReply r = ask("GET", path);
    INFO(path << ": " << r.body);
    REQUIRE(r.status == 200);
    return parse(r.body);
  }
  std::string upload(const std::string& content) const {
    const HttpReply r = ask("POST", "/v1/files", form(content), kForm);
    INFO(r.body);
    REQUIRE(r.status == 200);
    return str(parse(r.body).at("id"));
  }
  HttpReply create(const std::string& file, const char* endpoint = "/v1/completions",
                   const std::string& more = "", const char* window = "24h") const {
    return ask("POST", "/v1/batches",
               cat(R"({"input_file_id":")", file, R"(","endpoint":")", endpoint, R"(","completion_window":")",
                   window, "\"", more, "}"));
  }
  std::string begin(const std::string& file, const char* endpoint = "/v1/completions") const {
    const HttpReply r = create(file, endpoint);
    INFO(r.body);
    REQUIRE(r.status == 200);
    return str(parse(r.body).at("id"));
  }
  // Until the batch has that status, at most 10 s.
  value wait(const std::string& id, const std::set<std::string>& statuses) const {
    value v;
    for (int i = 0; i < 2000; ++i) {
      v = get("/v1/batches/" + id);
      if (statuses.contains(str(v.at("status")))) return v;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    FAIL("the batch is " << serialize(v));
    return v;
  }
  std::vector<value> lines_of(const value& file_id) const {
    const HttpReply r = ask("GET", cat("/v1/files/", str(file_id), "/content"));
    REQUIRE(r.status == 200);
    CHECK(r.complete);
    std::vector<value> out;
    std::istringstream in(r.body);
    for (std::string line; std::getline(in, line);) out.push_back(parse(line));
    return out;
  }
};

std::string completion(int i, const char* more = "") {
  return cat(R"({"custom_id":"r)", i, R"(","method":"POST","url":"/v1/completions","body":{"prompt":"p)", i,
             R"(","max_tokens":4)", more, "}}\n");
}

TEST_CASE("files: sent as a form, listed, described, read back, deleted") {
  TestServer t({}, with_files(fresh_folder()));
  const Client c{t.http(), ""};
  const std::string content = std::string("a\0b\r\n--Xy\r\n", 11) + std::string(100'000, 'x') + "\n";
  const std::string id = c.upload(content);
  const value v = c.get("/v1/files/" + id);
  CHECK(v.at("object") == "file");
  CHECK(v.at("bytes") == static_cast<int64_t>(content.size()));
  CHECK(v.at("filename") == "in.jsonl");
  CHECK(v.at("purpose") == "batch");
  CHECK(v.at("status") == "processed");
  CHECK(v.at("expires_at").is_null());
  const HttpReply read = c.ask("GET", cat("/v1/files/", id, "/content"));
  CHECK(read.status == 200);
  CHECK(read.body == content);
  const std::string second = c.upload("second");
  const value list = c.get("/v1/files?limit=1");
  CHECK(list.at("data").at(0).at("id") == value(second));  // latest first
  CHECK(list.at("has_more") == true);
  CHECK(c.get("/v1/files?limit=1&order=asc").at("data").at(0).at("id") == value(id));
  CHECK(c.get("/v1/files?after=" + second).at("data").at(0).at("id") == value(id));
  CHECK(c.get("/v1/files?purpose=batch_output").at("data").as_array().empty());
  const HttpReply gone = c.ask("DELETE", "/v1/files/" + id);
  CHECK(gone.status == 200);
  CHECK(parse(gone.body).at("deleted") == true);
  for (const char* path : {"", "/content"}) CHECK(c.ask("GET", cat("/v1/files/", id, path)).status == 404);
  CHECK(c.ask("DELETE", "/v1/files/" + id).status == 404);
  CHECK(c.ask("GET", "/v1/files/..%2Flock").status == 404);
}

TEST_CASE("files: what is not honoured is refused by name") {
  TestServer t({}, with_files(fresh_folder()));
  const Client c{t.http(), ""};
  const auto refusal = [&](const std::string& body, const char* type = kForm) {
    const HttpReply r = c.ask("POST", "/v1/files", body, type);
    INFO(r.body);
    CHECK(r.status == 400);
    return str(parse(r.body).at("error").at("message"));
  };
  const auto says = [](const std::string& text, const char* word) {
    INFO(text);
    CHECK(text.find(word) != std::string::npos);
  };
  const auto field = [](const char* name, const char* text) {
    return cat("--XyZ\r\nContent-Disposition: form-data; name=\"", name, "\"\r\n\r\n", text, "\r\n");
  };
  says(refusal(form("x", "", "vision")), "purpose");
  says(refusal(form("x", field("colour", "red"))), "colour");
  says(refusal(form("x", field("expires_after[anchor]", "created_at"))), "seconds");
  says(refusal(form("x", field("expires_after[anchor]", "now") + field("expires_after[seconds]", "3600"))),
       "created_at");
  says(
      refusal(form("x", field("expires_after[anchor]", "created_at") + field("expires_after[seconds]", "5"))),
      "3600");
  says(refusal(form("")), "empty");
  says(refusal(form("x"), "application/json"), "multipart");
  says(refusal(form("x"), "multipart/form-data"), "boundary");
  says(refusal(form("x"), "multipart/form-data; boundary=other"), "boundary");
  says(refusal(cat(field("file", "x"), field("purpose", "batch"), "--XyZ--")), "file name");
  const HttpReply kept =
      c.ask("POST", "/v1/files",
            form("x", field("expires_after[anchor]", "created_at") + field("expires_after[seconds]", "7200")),
            kForm);
  REQUIRE(kept.status == 200);
  const value v = parse(kept.body);
  CHECK(v.at("expires_at").as_int64() == v.at("created_at").as_int64() + 7200);
}

TEST_CASE("files: a body cut anywhere is refused or is the whole file") {
  const std::string whole = form("content");
  size_t good = 0;
  for (size_t n = 0; n <= whole.size(); ++n) {
    const auto parts = oar::http::parse_form(kForm, std::string_view(whole).substr(0, n));
    if (!parts.ok()) continue;
    ++good;
    REQUIRE(parts->size() == 2);
    CHECK((*parts)[1].content == "content");
  }
  CHECK(good == 3);  // the last boundary whole, and its line end
  // Quotes in names, an empty part, other parameters, text before the first boundary.
  const auto parts = oar::http::parse_form("Multipart/Form-Data; charset=x; boundary=b",
                                           "before\r\n--b\r\nX: y\r\ncontent-disposition: form-data; "
                                           "name=\"a\\\"b\"; filename=\"c;d\"\r\n\r\n\r\n--b \r\n"
                                           "Content-Disposition: form-data; name=e\r\n\r\n--\r\n--b--after");
  REQUIRE_OK(parts);
  REQUIRE(parts->size() == 2);
  CHECK((*parts)[0].name == "a\"b");
  CHECK((*parts)[0].file_name == std::optional<std::string>("c;d"));
  CHECK((*parts)[0].content.empty());
  CHECK((*parts)[1].content == "--");
  std::string many;
  for (int i = 0; i < 17; ++i)
    many += cat("--b\r\nContent-Disposition: form-data; name=n", i, "\r\n\r\nx\r\n");
  CHECK_FALSE(oar::http::parse_form("multipart/form-data; boundary=b", many + "--b--").ok());
}

TEST_CASE("batches: answered into a file, errors into another") {
  TestServer t(engine_of("Hello"), with_files(fresh_folder()));
  const Client c{t.http(), ""};
  const std::string file =
      c.upload(cat(completion(1), "\n", completion(2, R"(,"temperature":-1)"), completion(3)));
  const HttpReply made = c.create(file, "/v1/completions", R"(,"metadata":{"who":"me"})");
  REQUIRE(made.status == 200);
  const value first = parse(made.body);
  CHECK(first.at("object") == "batch");
  CHECK(first.at("status") == "validating");
  CHECK(first.at("expires_at").as_int64() == first.at("created_at").as_int64() + 86400);
  const std::string id = str(first.at("id"));
  const value v = c.wait(id, {"completed"});
  CHECK(v.at("request_counts").at("total") == 3);
  CHECK(v.at("request_counts").at("completed") == 2);
  CHECK(v.at("request_counts").at("failed") == 1);
  CHECK(v.at("metadata").at("who") == "me");
  CHECK(v.at("errors").is_null());
  for (const char* at : {"in_progress_at", "finalizing_at", "completed_at"}) CHECK(v.at(at).is_int64());
  for (const char* at : {"failed_at", "expired_at", "cancelling_at", "cancelled_at"})
    CHECK(v.at(at).is_null());
  std::set<std::string> ids;
  for (const value& line : c.lines_of(v.at("output_file_id"))) {
    ids.insert(str(line.at("custom_id")));
    CHECK(line.at("error").is_null());
    CHECK(line.at("response").at("status_code") == 200);
    CHECK(line.at("response").at("body").at("choices").at(0).at("text") == "Hell");
    CHECK(line.at("response").at("request_id") == line.at("response").at("body").at("id"));
  }
  CHECK(ids == std::set<std::string>{"r1", "r3"});
  const auto errors = c.lines_of(v.at("error_file_id"));
  REQUIRE(errors.size() == 1);
  CHECK(errors[0].at("custom_id") == "r2");
  CHECK(errors[0].at("response").at("status_code") == 400);
  CHECK(errors[0].at("response").at("body").at("error").at("param") == "temperature");
  const value output = c.get(cat("/v1/files/", str(v.at("output_file_id"))));
  CHECK(output.at("purpose") == "batch_output");
  CHECK(str(output.at("filename")).find(id) == 0);
  CHECK(c.get("/v1/batches").at("data").at(0).at("id") == value(id));
  // They go behind what people wait for.
  CHECK(t.engine.last_request().priority == 100);
  // The input may go now.
  CHECK(c.ask("DELETE", "/v1/files/" + file).status == 200);
}

TEST_CASE("batches: of responses") {
  TestServer t({}, with_files(fresh_folder()));
  const Client c{t.http(), ""};
  const std::string id =
      c.begin(c.upload(R"({"custom_id":"a","method":"POST","url":"/v1/responses","body":{"input":"q"}})"),
              "/v1/responses");
  const value line = c.lines_of(c.wait(id, {"completed"}).at("output_file_id")).at(0);
  CHECK(line.at("response").at("status_code") == 200);
  CHECK(line.at("response").at("body").at("object") == "response");
}

TEST_CASE("batches: a file that is none fails with its lines") {
  TestServer t({}, with_files(fresh_folder()));
  const Client c{t.http(), ""};
  const std::string chat =
      R"({"custom_id":"c","method":"POST","url":"/v1/chat/completions","body":{"messages":[]}})";
  const std::string id = c.begin(c.upload(cat(completion(1), completion(1), "{\n", chat, "\n")));
  const value v = c.wait(id, {"failed"});
  const auto& errors = v.at("errors").at("data").as_array();
  REQUIRE(errors.size() == 3);
  CHECK(errors[0].at("line") == 2);
  CHECK(errors[0].at("param") == "custom_id");
  CHECK(errors[1].at("line") == 3);
  CHECK(errors[2].at("line") == 4);
  CHECK(errors[2].at("param") == "url");
  CHECK(v.at("failed_at").is_int64());
  CHECK(v.at("output_file_id").is_null());
  CHECK(t.engine.submitted() == 0);
  const value none = c.wait(c.begin(c.upload("\n\n")), {"failed"});
  CHECK(str(none.at("errors").at("data").at(0).at("message")).find("no request") != std::string::npos);
}

TEST_CASE("batches: what is not honoured is refused by name") {
  TestServer t({}, with_files(fresh_folder()));
  const Client c{t.http(), ""};
  const std::string file = c.upload(completion(1));
  const auto param = [](const HttpReply& r, int status = 400) {
    INFO(r.body);
    CHECK(r.status == status);
    const value p = parse(r.body).at("error").at("param");
    return p.is_string() ? str(p) : std::string();
  };
  CHECK(param(c.create("file-none"), 404) == "input_file_id");
  CHECK(param(c.create(file, "/v1/moderations")) == "endpoint");
  for (const char* window : {"1d", "0h", "169h", "h", "24", "-1h"})
    CHECK(param(c.create(file, "/v1/completions", "", window)) == "completion_window");
  CHECK(param(c.create(file, "/v1/completions", R"(,"metadata":{"a":1})")) == "metadata");
  CHECK(param(c.create(file, "/v1/completions", R"(,"notify":"me")")) == "notify");
  CHECK(param(c.create(file, "/v1/completions", R"(,"output_expires_after":{"anchor":"created_at"})")) ==
        "output_expires_after.seconds");
  CHECK(c.ask("GET", "/v1/batches/batch_none").status == 404);
  CHECK(c.ask("GET", "/v1/batches?limit=101").status == 400);
  const std::string id = c.begin(file);
  const value v = c.wait(id, {"completed"});
  CHECK(param(c.ask("POST", cat("/v1/batches/", id, "/cancel"))) == "batch_id");
  CHECK(param(c.create(str(v.at("output_file_id")))) == "input_file_id");
}

TEST_CASE("batches: a cancelled one keeps what it has and lets go of the rest") {
  TestServer t(engine_of("Hello"), with_files(fresh_folder()));
  const Client c{t.http(), ""};
  std::string lines;
  for (int i = 0; i < 20; ++i) lines += completion(i, i < 3 ? "" : R"(,"min_tokens":4)");
  t.engine.pause(true);
  const std::string file = c.upload(lines);
  const std::string id = c.begin(file);
  for (int i = 0; i < 1000 && t.engine.submitted() < 8; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(t.engine.submitted() == 8);                           // batch_concurrency
  CHECK(c.ask("DELETE", "/v1/files/" + file).status == 400);  // it is being read
  const HttpReply r = c.ask("POST", cat("/v1/batches/", id, "/cancel"));
  CHECK(r.status == 200);
  const value v = c.wait(id, {"cancelled"});
  CHECK(v.at("cancelling_at").is_int64());
  CHECK(v.at("request_counts").at("total") == 20);
  CHECK(v.at("request_counts").at("completed") == 0);
  CHECK(v.at("output_file_id").is_null());
  t.engine.pause(false);
  CHECK(t.engine.wait_idle());
  CHECK(t.engine.submitted() == 8);
}

TEST_CASE("batches: what the window leaves unanswered is said line by line") {
  TestServer t({}, with_files(fresh_folder()));
  const Client c{t.http(), ""};
  t.engine.pause(true);
  const HttpReply made = c.create(c.upload(cat(completion(1), completion(2))), "/v1/completions", "", "1s");
  REQUIRE(made.status == 200);
  const value v = c.wait(str(parse(made.body).at("id")), {"expired"});
  CHECK(v.at("expired_at").is_int64());
  CHECK(v.at("request_counts").at("failed") == 2);
  const auto lines = c.lines_of(v.at("error_file_id"));
  REQUIRE(lines.size() == 2);
  CHECK(lines[0].at("error").at("code") == "batch_expired");
  CHECK(lines[0].at("response").is_null());
  t.engine.pause(false);
}

TEST_CASE("batches: a server that stops leaves them to the next, which asks nothing twice") {
  const std::string folder = fresh_folder();
  std::string lines;
  for (int i = 0; i < 30; ++i) lines += completion(i, i < 8 ? "" : R"(,"max_tokens":4)");
  std::string id, file;
  uint64_t before = 0;
  {
    auto options = with_files(folder);
    options.batch_concurrency = 2;
    FakeEngineOptions slow;
    slow.step = std::chrono::milliseconds(4);
    TestServer t(slow, options);
    const Client c{t.http(), ""};
    file = c.upload(lines);
    id = c.begin(file);
    for (;;) {
      const int64_t n = c.get("/v1/batches/" + id).at("request_counts").at("completed").as_int64();
      if (n >= 5) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    CHECK(t.server->drain_and_stop(std::chrono::seconds(5)));
    before = t.engine.submitted();
    CHECK(before < 30);
  }
  // A crash leaves half a line.
  {
    std::ofstream out(fs::path(folder) / "batches" / (id + ".output"), std::ios::app | std::ios::binary);
    out << R"({"custom_id":"r29","respon)";
  }
  TestServer t({}, with_files(folder));
  const Client c{t.http(), ""};
  const value v = c.wait(id, {"completed"});
  CHECK(v.at("request_counts").at("completed") == 30);
  std::set<std::string> ids;
  size_t count = 0;
  for (const value& line : c.lines_of(v.at("output_file_id"))) {
    ids.insert(str(line.at("custom_id")));
    ++count;
  }
  CHECK(ids.size() == 30);
  CHECK(count == 30);
  CHECK(t.engine.submitted() <= 25);  // the rest
  CHECK(c.get("/v1/files").at("data").as_array().size() == 2);
  CHECK(t.engine.submitted() + before >= 30);
}

TEST_CASE("batches: the next server fails what it cannot go on with, and says why") {
  const std::string folder = fresh_folder();
  std::string id;
  {
    TestServer t({}, with_files(folder));
    const Client c{t.http(), ""};
    t.engine.pause(true);
    const std::string file = c.upload(completion(1));
    id = c.begin(file);
    c.wait(id, {"in_progress"});
    t.server->drain_and_stop(std::chrono::seconds(1));
    fs::remove(fs::path(folder) / "files" / file);
  }
  std::ofstream(fs::path(folder) / "batches" / "batch_odd.json") << "{\"owner\":1}";
  TestServer t({}, with_files(folder));
  const Client c{t.http(), ""};
  const value v = c.wait(id, {"failed"});
  CHECK(str(v.at("errors").at("data").at(0).at("message")).find("no longer there") != std::string::npos);
  CHECK(c.get("/v1/batches").at("data").as_array().size() == 1);
  // Two servers do not share a folder.
  CHECK_THROWS_WITH(TestServer({}, with_files(folder)), Contains("another server"));
}

TEST_CASE("batches: keys see their own files and batches alone, and their limits hold") {
  const std::string folder = fresh_folder();
  const std::string keys = (fs::path(temp_dir()) / "batch-keys").string();
  std::ofstream(keys)
      << "alpha-secret name=alpha requests-per-minute=6000 concurrency=2\nbeta-secret name=beta\n";
  auto options = with_files(folder);
  options.api_key_file = keys;
  TestServer t({}, options);
  const Client a{t.http(), "alpha-secret"}, b{t.http(), "beta-secret"};
  std::string lines;
  for (int i = 0; i < 12; ++i) lines += completion(i);
  const std::string file = a.upload(lines);
  CHECK(b.ask("GET", "/v1/files/" + file).status == 404);
  CHECK(b.ask("DELETE", "/v1/files/" + file).status == 404);
  CHECK(b.create(file).status == 404);
  CHECK(b.get("/v1/files").at("data").as_array().empty());
  const std::string id = a.begin(file);
  CHECK(b.ask("GET", "/v1/batches/" + id).status == 404);
  CHECK(b.ask("POST", cat("/v1/batches/", id, "/cancel")).status == 404);
  // Its own requests beyond the key's two at once come again later.
  const value v = a.wait(id, {"completed"});
  CHECK(v.at("request_counts").at("completed") == 12);
  CHECK(t.engine.last_request().caller == "alpha");
  CHECK(Client{t.http(), ""}.ask("GET", "/v1/files").status == 401);
}

TEST_CASE("batches: a full folder refuses uploads and ends batches with words") {
  auto options = with_files(fresh_folder());
  options.files_bytes = 700;
  TestServer t({}, options);
  const Client c{t.http(), ""};
  CHECK(c.ask("POST", "/v1/files", form(std::string(701, 'x')), kForm).status == 429);
  const std::string id = c.begin(c.upload(cat(completion(1), completion(2), completion(3))));
  const value v = c.wait(id, {"failed"});
  CHECK(v.at("errors").at("data").at(0).at("code") == "storage_full");
  // What was deleted is room again.
  const value left = c.get("/v1/files");
  for (const value& f : left.at("data").as_array())
    CHECK(c.ask("DELETE", "/v1/files/" + str(f.at("id"))).status == 200);
  CHECK(c.ask("POST", "/v1/files", form(std::string(700, 'x')), kForm).status == 200);
}

TEST_CASE("files and batches: without a folder they are off, and say how to have them") {
  TestServer t;
  const Client c{t.http(), ""};
  for (const auto& [method, path] : {std::pair{"GET", "/v1/files"},
                                     {"POST", "/v1/files"},
                                     {"GET", "/v1/batches"},
                                     {"POST", "/v1/batches"},
                                     {"GET", "/v1/files/x/content"}}) {
    const HttpReply r = c.ask(method, path, "{}");
    CHECK(r.status == 501);
    CHECK(r.body.find("--files") != std::string::npos);
  }
}

}  // namespace
