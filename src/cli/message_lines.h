// Lines as typed to one message: a trailing backslash continues it, """ opens and closes a block.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tidemill::cli {

class MessageLines {
 public:
  // The whole message once its last line is there; nothing while more lines belong to it.
  std::optional<std::string> push(std::string_view line);
  // End of input: what there is, if anything.
  std::optional<std::string> finish();
  void cancel();
  bool open() const { return open_; }

 private:
  bool open_ = false;   // a message has begun and is not complete
  bool block_ = false;  // inside """
  std::string text_;
};

}  // namespace tidemill::cli
