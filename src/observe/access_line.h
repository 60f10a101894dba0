// One line of the log for each request.
#pragma once

#include <string>

#include "observe/request_record.h"

namespace tidemill {

// key=value, separated by spaces, without a newline; a value with spaces, quotes or "=" is quoted
// with \" and \\ inside, control characters are \n, \r, \t, \xNN. What did not happen is left out.
// Nothing of prompt or answer is in it.
//   request id=chatcmpl-1 client=alice endpoint=/v1/chat/completions model=m stream=true status=200
//   outcome=stop choices=1 prompt=12 cached=0 output=7 reasoning=3 queue_ms=0.4 ttft_ms=35.1
//   total_ms=90.0 bytes=812
std::string access_line(const RequestRecord& record);

}  // namespace tidemill
