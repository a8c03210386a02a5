// strftime in the C locale, for strftime_now.
#include <chrono>
#include <string>

#include "engine/text/jinja/interpreter.h"

namespace oar::jinja {
namespace {

std::string two_digits(int v, char filler) {
  std::string s = std::to_string(v);
  if (s.size() < 2 && filler != '\0') s.insert(0, 1, filler);
  return s;
}

}  // namespace

std::string format_time(const ClockTime& t, std::string_view format) {
  static constexpr std::string_view kMonths[] = {"January",   "February", "March",    "April",
                                                 "May",       "June",     "July",     "August",
                                                 "September", "October",  "November", "December"};
  static constexpr std::string_view kDays[] = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                               "Thursday", "Friday", "Saturday"};
  using namespace std::chrono;
  const sys_days date = year{t.year} / t.month / t.day;
  const auto weekday_index = static_cast<int>(weekday{date}.c_encoding());  // Sunday is 0
  const int day_of_year = static_cast<int>((date - sys_days{year{t.year} / 1 / 1}).count());
  const int iso_weekday = weekday_index == 0 ? 7 : weekday_index;
  // The ISO week belongs to the year of its Thursday.
  const sys_days thursday = date + days{4 - iso_weekday};
  const auto iso_year = static_cast<int>(year_month_day{thursday}.year());
  const int iso_week = static_cast<int>((thursday - sys_days{year{iso_year} / 1 / 1}).count()) / 7 + 1;
  const int hour12 = t.hour % 12 == 0 ? 12 : t.hour % 12;
  const std::string_view month = kMonths[t.month - 1], day = kDays[weekday_index];

  std::string out;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%' || i + 1 >= format.size()) {
      out += format[i];
      continue;
    }
    char c = format[++i];
    // glibc's flags: '-' drops the padding, '_' pads with blanks, '0' with zeros.
    char flag = '\0';
    if ((c == '-' || c == '_' || c == '0') && i + 1 < format.size()) {
      flag = c;
      c = format[++i];
    }
    const auto filler = [&](char usual) {
      return flag == '-' ? '\0' : flag == '_' ? ' ' : flag == '0' ? '0' : usual;
    };
    const auto put = [&](int v, char usual = '0') { out += two_digits(v, filler(usual)); };
    switch (c) {
      case '%': out += '%'; break;
      case 'n': out += '\n'; break;
      case 't': out += '\t'; break;
      case 'Y': out += std::to_string(t.year); break;
      case 'y': put(t.year % 100); break;
      case 'C': put(t.year / 100); break;
      case 'm': put(t.month); break;
      case 'd': put(t.day); break;
      case 'e': put(t.day, ' '); break;
      case 'H': put(t.hour); break;
      case 'k': put(t.hour, ' '); break;
      case 'I': put(hour12); break;
      case 'l': put(hour12, ' '); break;
      case 'M': put(t.minute); break;
      case 'S': put(t.second); break;
      case 'f': out += "000000"; break;
      case 'p': out += t.hour < 12 ? "AM" : "PM"; break;
      case 'B': out += month; break;
      case 'b':
      case 'h': out += month.substr(0, 3); break;
      case 'A': out += day; break;
      case 'a': out += day.substr(0, 3); break;
      case 'j': {
        std::string s = std::to_string(day_of_year + 1);
        if (flag != '-' && s.size() < 3) s.insert(0, 3 - s.size(), flag == '_' ? ' ' : '0');
        out += s;
        break;
      }
      case 'u': out += std::to_string(iso_weekday); break;
      case 'w': out += std::to_string(weekday_index); break;
      case 'U': put((day_of_year + 7 - weekday_index) / 7); break;
      case 'W': put((day_of_year + 7 - (iso_weekday - 1)) / 7); break;
      case 'V': put(iso_week); break;
      case 'G': out += std::to_string(iso_year); break;
      case 'g': put(iso_year % 100); break;
      case 'D': out += format_time(t, "%m/%d/%y"); break;
      case 'F': out += format_time(t, "%Y-%m-%d"); break;
      case 'T': out += format_time(t, "%H:%M:%S"); break;
      case 'X': out += format_time(t, "%H:%M:%S"); break;
      case 'x': out += format_time(t, "%m/%d/%y"); break;
      case 'R': out += format_time(t, "%H:%M"); break;
      case 'r': out += format_time(t, "%I:%M:%S %p"); break;
      case 'c': out += format_time(t, "%a %b %e %H:%M:%S %Y"); break;
      case 'z':
      case 'Z': break;  // a time without zone
      default: fail("strftime_now: unknown directive %", c);
    }
  }
  return out;
}

}  // namespace oar::jinja
