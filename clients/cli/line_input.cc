#include "clients/cli/line_input.h"

#include <histedit.h>
#include <langinfo.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cwchar>
#include <filesystem>
#include <functional>

namespace oar::cli {
namespace {

constexpr int kPollMs = 100;
constexpr int kHistorySize = 1000;
// What a terminal puts around a pasted block once it is asked to (bracketed paste, xterm's mode 2004).
constexpr const char* kPasteOn = "\033[?2004h";
constexpr const char* kPasteOff = "\033[?2004l";
constexpr const char* kPasteBegin = "\033[200~";
constexpr std::wstring_view kPasteEnd = L"\033[201~";

// One read() once there is something: > 0 bytes, 0 at the end, -1 with `interrupted` still set.
ssize_t read_some(std::atomic<bool>& interrupted, char* bytes, size_t size,
                  const std::function<void()>& idle = {}) {
  while (true) {
    if (interrupted) return -1;
    if (idle) idle();
    pollfd fd{STDIN_FILENO, POLLIN, 0};
    if (poll(&fd, 1, kPollMs) <= 0) continue;
    const ssize_t n = read(STDIN_FILENO, bytes, size);
    if (n >= 0) return n;
    if (errno != EINTR && errno != EAGAIN) return 0;
  }
}

class PipedLines : public LineInput {
 public:
  explicit PipedLines(std::atomic<bool>& interrupted) : interrupted_(interrupted) {}
  End next(std::string& line) override {
    while (true) {
      if (const size_t end = buffer_.find('\n'); end != std::string::npos) {
        line = buffer_.substr(0, end);
        buffer_.erase(0, end + 1);
        if (!line.empty() && line.back() == '\r') line.pop_back();
        return End::kMessage;
      }
      if (eof_) {
        if (buffer_.empty()) return End::kEof;
        line = std::move(buffer_);
        buffer_.clear();
        return End::kMessage;
      }
      char bytes[4096];
      const ssize_t n = read_some(interrupted_, bytes, sizeof bytes);
      if (n < 0) {
        interrupted_ = false;
        return End::kInterrupt;
      }
      buffer_.append(bytes, static_cast<size_t>(n));
      eof_ = n == 0;
    }
  }

 private:
  std::atomic<bool>& interrupted_;
  std::string buffer_;
  bool eof_ = false;
};

// libedit (https://www.thrysoee.dk/editline). It reads through next_char(), so that an interrupt is seen.
class EditedLines : public LineInput {
 public:
  EditedLines(std::atomic<bool>& interrupted, std::string history)
      : interrupted_(interrupted), history_file_(std::move(history)) {}
  EditedLines(const EditedLines&) = delete;
  ~EditedLines() override {
    if (edit_ != nullptr) el_end(edit_);
    if (history_ != nullptr) history_end(history_);
  }

  bool open() {
    edit_ = el_init("oar", stdin, stderr, stderr);
    history_ = history_init();
    if (edit_ == nullptr || history_ == nullptr) return false;
    el_set(edit_, EL_CLIENTDATA, this);
    el_set(edit_, EL_EDITOR, "emacs");
    el_set(edit_, EL_PROMPT, &prompt);
    el_set(edit_, EL_GETCFN, &next_char);
    el_set(edit_, EL_HIST, ::history, history_);
    el_set(edit_, EL_BIND, "^R", "em-inc-search-prev", nullptr);
    el_set(edit_, EL_ADDFN, "oar-paste", "takes a pasted block as it is", &paste);
    el_set(edit_, EL_BIND, kPasteBegin, "oar-paste", nullptr);
    el_set(edit_, EL_ADDFN, "oar-newline", "goes on in the next line", &new_line);
    for (const char* alt_enter : {"\033\n", "\033\r"})
      el_set(edit_, EL_BIND, alt_enter, "oar-newline", nullptr);
    el_source(edit_, nullptr);  // the user's ~/.editrc
    HistEvent event;
    ::history(history_, &event, H_SETSIZE, kHistorySize);
    ::history(history_, &event, H_SETUNIQUE, 1);
    if (!history_file_.empty()) ::history(history_, &event, H_LOAD, history_file_.c_str());
    return true;
  }

  End next(std::string& message) override {
    message.clear();
    continued_ = false;
    while (true) {
      int count = 0;
      std::fputs(kPasteOn, stderr);
      // Before the prompt shows: keys that come sooner would be read by the terminal's own line editing.
      el_set(edit_, EL_PREP_TERM, 1);
      const char* line = el_gets(edit_, &count);
      std::fputs(kPasteOff, stderr);
      if (interrupted_.exchange(false)) return End::kInterrupt;
      if (line == nullptr || count <= 0) {
        if (message.empty()) return End::kEof;
        break;
      }
      message.append(line, static_cast<size_t>(count));
      if (message.back() == '\n') message.pop_back();
      if (!message.ends_with('\\')) break;
      message.back() = '\n';
      continued_ = true;
    }
    if (message.find_first_not_of(" \t\n") != std::string::npos) remember(message);
    return End::kMessage;
  }

 private:
  static EditedLines& of(EditLine* edit) {
    void* self = nullptr;
    el_get(edit, EL_CLIENTDATA, &self);
    return *static_cast<EditedLines*>(self);
  }

  static char* prompt(EditLine* edit) {
    static char first[] = "> ", more[] = "... ";
    return of(edit).continued_ ? more : first;
  }

  // One character of the locale; 0 at the end, -1 at an interrupt.
  static int next_char(EditLine* edit, wchar_t* out) {
    EditedLines& self = of(edit);
    std::mbstate_t state{};
    while (true) {
      char byte = 0;
      const ssize_t n = read_some(self.interrupted_, &byte, 1, [&] { self.follow_size(); });
      if (n <= 0) return static_cast<int>(n);
      const size_t used = std::mbrtowc(out, &byte, 1, &state);
      if (used == static_cast<size_t>(-2)) continue;  // more bytes belong to it
      if (used == static_cast<size_t>(-1)) *out = L'\xFFFD';
      return 1;
    }
  }

  void follow_size() {
    winsize now{};
    if (ioctl(STDIN_FILENO, TIOCGWINSZ, &now) != 0) return;
    if (size_.ws_col != 0 && (now.ws_col != size_.ws_col || now.ws_row != size_.ws_row)) {
      el_resize(edit_);
      el_set(edit_, EL_REFRESH);
    }
    size_ = now;
  }

  static unsigned char paste(EditLine* edit, int) {
    std::wstring block;
    wchar_t c = 0;
    while (!block.ends_with(kPasteEnd) && el_wgetc(edit, &c) == 1) block += c == L'\r' ? L'\n' : c;
    if (block.ends_with(kPasteEnd)) block.resize(block.size() - kPasteEnd.size());
    while (block.ends_with(L'\n')) block.pop_back();
    if (!block.empty()) el_winsertstr(edit, block.c_str());
    return CC_REFRESH;
  }

  static unsigned char new_line(EditLine* edit, int) {
    el_winsertstr(edit, L"\n");
    return CC_REFRESH;
  }

  void remember(const std::string& message) {
    HistEvent event;
    ::history(history_, &event, H_ENTER, message.c_str());
    if (history_file_.empty()) return;
    std::error_code ec;
    const std::filesystem::path folder = std::filesystem::path(history_file_).parent_path();
    if (!folder.empty() && std::filesystem::create_directories(folder, ec))
      std::filesystem::permissions(folder, std::filesystem::perms::owner_all, ec);
    if (::history(history_, &event, H_SAVE, history_file_.c_str()) < 0) {
      std::fprintf(stderr, "(the history cannot be kept in %s: %s)\n", history_file_.c_str(),
                   std::strerror(errno));
      history_file_.clear();
    }
  }

  std::atomic<bool>& interrupted_;
  std::string history_file_;
  EditLine* edit_ = nullptr;
  History* history_ = nullptr;
  bool continued_ = false;
  winsize size_{};
};

}  // namespace

std::unique_ptr<LineInput> piped_lines(std::atomic<bool>& interrupted) {
  return std::make_unique<PipedLines>(interrupted);
}

std::unique_ptr<LineInput> edited_lines(std::atomic<bool>& interrupted, const std::string& history) {
  std::setlocale(LC_CTYPE, "");
  if (std::strcmp(nl_langinfo(CODESET), "UTF-8") != 0) std::setlocale(LC_CTYPE, "C.UTF-8");
  auto lines = std::make_unique<EditedLines>(interrupted, history);
  return lines->open() ? std::move(lines) : nullptr;
}

std::string default_history() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  if (const std::string state = variable("XDG_STATE_HOME"); !state.empty()) return state + "/oar/history";
  const std::string home = variable("HOME");
  return home.empty() ? home : home + "/.local/state/oar/history";
}

}  // namespace oar::cli
