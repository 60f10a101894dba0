// Errors are values: every call that can fail on its input returns Result<T>.
#pragma once

#include <cstdint>
#include <string>

#include <tl/expected.hpp>

namespace tidemill {

// Numbered by family (the thousands digit); a number is never reused, so a log line or a client
// can be searched for it.
enum class ErrorCode : int32_t {
  // 1xxx usage: the caller asked for something that cannot be done. Exit code 2.
  kInvalidArgument = 1001,
  kConflictingOptions = 1002,
  // 2xxx files and the system
  kFileNotFound = 2001,
  kFileRead = 2002,
  kFileWrite = 2003,
  kOutOfMemory = 2004,
  kDevice = 2005,  // an accelerator: none, or one that has failed
  // 3xxx checkpoint: the model directory is wrong
  kConfig = 3001,
  kSafetensors = 3002,
  kTensorMissing = 3003,
  kTensorMismatch = 3004,
  kTensorValue = 3005,
  kTokenizer = 3006,
  kEngramMap = 3007,
  // 4xxx request: what a client sent is wrong
  kRequest = 4001,
  kTokenOutOfRange = 4002,
  kContextLength = 4003,
  kUtf8 = 4004,
  // 5xxx capacity
  kNoCapacity = 5001,
  kCancelled = 5002,
  kDeadline = 5003,
  // 9xxx a fault of this program
  kInternal = 9001,
};

struct Error {
  ErrorCode code = ErrorCode::kInternal;
  // One line: what, the numbers, what to change.
  std::string message;
};

template <typename T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

}  // namespace tidemill
