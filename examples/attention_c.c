/* The same as attention.cpp, from C: causal attention, and which kernel computed it. */
#include <stdio.h>
#include <stdlib.h>

#include <fovea/fovea_c.h>

enum { BATCH = 1, HEADS = 8, SEQ = 256, DIM = 64, COUNT = BATCH * HEADS * SEQ * DIM };

/* A contiguous [batch, heads, seq, dim] operand of one segment. */
static fovea_operand operand(float* data) {
  fovea_operand result = {0};
  fovea_tensor* view = &result.segments[0].tensor;
  result.count = 1;
  view->data = data;
  view->dtype = FOVEA_F32;
  view->rank = 4;
  view->shape[0] = BATCH, view->strides[0] = (int64_t)HEADS * SEQ * DIM;
  view->shape[1] = HEADS, view->strides[1] = (int64_t)SEQ * DIM;
  view->shape[2] = SEQ, view->strides[2] = DIM;
  view->shape[3] = DIM, view->strides[3] = 1;
  return result;
}

int main(void) {
  float* memory = malloc(4 * COUNT * sizeof(float));
  if (memory == NULL) return 1;
  float *q = memory, *k = q + COUNT, *v = k + COUNT, *out = v + COUNT;
  for (int i = 0; i < COUNT; ++i) {
    q[i] = 0.001f * (float)(i % 997);
    k[i] = 0.001f * (float)(i % 991);
    v[i] = 1.0f;
  }

  fovea_params params = {0};
  params.struct_size = sizeof params;
  params.q = operand(q);
  params.k = operand(k);
  params.v = operand(v);
  params.band_anchor = FOVEA_TOP_LEFT;
  params.band_left = FOVEA_UNBOUNDED;
  params.band_right = 0;
  fovea_forward_args args = {0};
  args.struct_size = sizeof args;
  args.params = &params;
  args.out = operand(out);

  fovea_plan* plan = NULL;
  int failed = fovea_plan_forward(&args, NULL, &plan) != FOVEA_OK ||
               fovea_plan_run_forward(plan, &args, NULL) != FOVEA_OK;
  if (failed) {
    fprintf(stderr, "%s\n", fovea_last_error());
  } else {
    /* Every value is 1, so a weighted mean of values is 1. */
    printf("fovea %s: %s, out[0] = %g\n", fovea_version(), fovea_plan_kernel(plan), out[0]);
    failed = !(out[0] > 0.999f && out[0] < 1.001f);
  }
  fovea_plan_destroy(plan);
  free(memory);
  return failed;
}
