#include "engine/runtime/trace_event.h"

#include "engine/text/json_text.h"

namespace oar {
namespace {

void append_microseconds(std::string& out, int64_t ns) {
  uint64_t left = static_cast<uint64_t>(ns);
  if (ns < 0) {
    out += '-';
    left = 0 - left;
  }
  out += std::to_string(left / 1000);
  const uint64_t rest = left % 1000;
  out += '.';
  out += static_cast<char>('0' + rest / 100);
  out += static_cast<char>('0' + rest / 10 % 10);
  out += static_cast<char>('0' + rest % 10);
}

}  // namespace

void append_event(std::string& out, const TraceEvent& e, std::span<const TraceArgument> args) {
  out += "{\"ph\":\"";
  out += static_cast<char>(e.phase);
  out += "\",\"pid\":" + std::to_string(e.process);
  if (e.phase == TracePhase::kSlice || e.phase == TracePhase::kName)
    out += ",\"tid\":" + std::to_string(e.track);
  // In quotes: readers hold numbers in doubles.
  if (e.phase == TracePhase::kAsyncBegin || e.phase == TracePhase::kAsyncEnd)
    out += ",\"id\":\"" + std::to_string(e.id) + '"';
  if (e.phase == TracePhase::kMark) out += ",\"s\":\"p\"";
  if (!e.category.empty()) {
    out += ",\"cat\":";
    append_json_string(out, e.category);
  }
  out += ",\"name\":";
  append_json_string(out, e.name);
  if (e.phase != TracePhase::kName) {
    out += ",\"ts\":";
    append_microseconds(out, e.at_ns);
  }
  if (e.phase == TracePhase::kSlice) {
    out += ",\"dur\":";
    append_microseconds(out, e.duration_ns);
  }
  if (args.size() > 0) {
    char before = '{';
    out += ",\"args\":";
    for (const TraceArgument& a : args) {
      out += before;
      before = ',';
      append_json_string(out, a.name);
      out += ':';
      if (const auto* number = std::get_if<int64_t>(&a.value)) out += std::to_string(*number);
      else append_json_string(out, std::get<std::string_view>(a.value));
    }
    out += '}';
  }
  out += '}';
}

}  // namespace oar
