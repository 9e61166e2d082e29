// Early return of a Status that is not ok.
#pragma once

#include <fovea/status.h>

#define FOVEA_RETURN_IF_ERROR(expression)                                      \
  do {                                                                         \
    if (::fovea::Status status_ = (expression); !status_.ok()) return status_; \
  } while (false)
