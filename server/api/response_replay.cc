#include "server/api/response_replay.h"

#include "engine/base/json.h"
#include "server/api/event_record.h"

namespace oar::api {
namespace {

class Replay {
 public:
  explicit Replay(int64_t after) : after_(after) {}

  void response(std::string_view type, const json::object& body) { record(type, {{"response", body}}); }
  void item(int64_t index, const json::object& item) {
    json::object begun = item;
    begun["status"] = "in_progress";
    if (begun.contains("content")) begun["content"] = json::array();
    if (begun.contains("arguments")) begun["arguments"] = "";
    record("response.output_item.added", {{"output_index", index}, {"item", begun}});
    const json::object of{{"item_id", item.at("id")}, {"output_index", index}};
    if (const json::value* arguments = item.if_contains("arguments")) {
      part("response.function_call_arguments.delta", of, {{"delta", *arguments}});
      part("response.function_call_arguments.done", of,
           {{"name", item.at("name")}, {"arguments", *arguments}});
    }
    if (const json::value* content = item.if_contains("content"))
      for (const json::value& one : content->as_array()) text(of, one.as_object());
    record("response.output_item.done", {{"output_index", index}, {"item", item}});
  }
  std::string take() { return std::move(out_); }

 private:
  void text(json::object of, const json::object& content) {
    of["content_index"] = 0;
    json::object begun = content;
    begun["text"] = "";
    part("response.content_part.added", of, {{"part", begun}});
    const std::string kind = content.at("type") == "reasoning_text" ? "reasoning_text" : "output_text";
    part("response." + kind + ".delta", of, {{"delta", content.at("text")}, {"logprobs", json::array()}});
    part("response." + kind + ".done", of, {{"text", content.at("text")}, {"logprobs", json::array()}});
    part("response.content_part.done", of, {{"part", content}});
  }
  void part(std::string_view type, const json::object& of, const json::object& members) {
    json::object all = of;
    for (const auto& member : members) all[member.key()] = member.value();
    record(type, all);
  }
  void record(std::string_view type, const json::object& members) {
    const int64_t number = number_++;
    if (number <= after_) return;
    append_record(out_, type, [&](JsonWriter& w) {
      w.key("sequence_number").number(number);
      for (const auto& member : members) w.key(member.key()).value(member.value());
    });
  }

  const int64_t after_;
  int64_t number_ = 0;
  std::string out_;
};

}  // namespace

std::string replayed_response(const std::string& body, int64_t after) {
  const json::object whole = json::parse(body).as_object();
  json::object begun = whole;
  begun["status"] = "in_progress";
  begun["output"] = json::array();
  begun["usage"] = nullptr;
  begun["incomplete_details"] = nullptr;
  Replay replay(after);
  replay.response("response.created", begun);
  replay.response("response.in_progress", begun);
  int64_t index = 0;
  for (const json::value& item : whole.at("output").as_array()) replay.item(index++, item.as_object());
  replay.response(whole.at("status") == "incomplete" ? "response.incomplete" : "response.completed", whole);
  return replay.take();
}

}  // namespace oar::api
