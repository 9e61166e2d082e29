// Fovea: exact fused attention that proves itself. Include this header to get all of the API.
#pragma once

#include <fovea/attention.h>
#include <fovea/device_memory.h>
#include <fovea/introspect.h>
#include <fovea/plan.h>
#include <fovea/providers.h>
#include <fovea/report.h>
#include <fovea/status.h>
#include <fovea/tensor.h>
