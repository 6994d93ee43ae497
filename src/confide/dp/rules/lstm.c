/* The recurrence of an LSTM, forward and back. Rows of the batch never meet, so that each thread takes its rows through all of time. */
#if defined(__x86_64__) && defined(__GNUC__)
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef float Eight __attribute__((vector_size(32), aligned(4), may_alias));

enum { SIDE = 16, MOST = 6 };  /* columns of a packed panel; rows that are multiplied with it at a time */
#define VECTORS __attribute__((target("avx2,fma")))
#define INLINE static inline __attribute__((always_inline, target("avx2,fma")))

static inline long least(long a, long b) { return a < b ? a : b; }

/* to[panel][k][16]: column `panel·16 + c` of a matrix in which term k of column n stands at from[n·column + k·term]. */
static void by_panels(const float *from, long columns, long terms, long column, long term, float *to) {
    for (long n = 0; n < columns; n += SIDE)
        for (long k = 0; k < terms; k++)
            for (long c = 0; c < SIDE; c++) *to++ = n + c < columns ? from[(n + c) * column + k * term] : 0;
}

INLINE void few_rows(int rows, const float *x, long x_row, const float *panel, long terms, float *out, long out_row, long columns) {
    Eight sum[MOST][2];
    for (int r = 0; r < rows; r++) sum[r][0] = sum[r][1] = (Eight){0};
    for (long k = 0; k < terms; k++) {
        const Eight left = *(const Eight *)(panel + k * SIDE), right = *(const Eight *)(panel + k * SIDE + 8);
        for (int r = 0; r < rows; r++) {
            const float one = x[r * x_row + k];
            sum[r][0] += left * one;
            sum[r][1] += right * one;
        }
    }
    for (int r = 0; r < rows; r++)
        for (long c = 0; c < columns; c++) out[r * out_row + c] += ((const float *)sum[r])[c];
}

/* out[rows][columns] += x[rows][terms] times the packed matrix; every row is summed in the same order. */
VECTORS static void add_product(long rows, const float *x, long x_row, const float *packed, long terms, float *out, long out_row, long columns) {
    for (long n = 0; n < columns; n += SIDE, packed += terms * SIDE) {
        const long wide = least(columns - n, SIDE);
        for (long r = 0; r < rows; r += MOST) {
            const float *from = x + r * x_row;
            float *to = out + r * out_row + n;
            switch (least(rows - r, MOST)) {
            case 6: few_rows(6, from, x_row, packed, terms, to, out_row, wide); break;
            case 5: few_rows(5, from, x_row, packed, terms, to, out_row, wide); break;
            case 4: few_rows(4, from, x_row, packed, terms, to, out_row, wide); break;
            case 3: few_rows(3, from, x_row, packed, terms, to, out_row, wide); break;
            case 2: few_rows(2, from, x_row, packed, terms, to, out_row, wide); break;
            default: few_rows(1, from, x_row, packed, terms, to, out_row, wide);
            }
        }
    }
}

/* e^x - 1 to a few units in the last place; x is kept within ±88, and not a number stays so. */
INLINE float less_one(float x) {
    x = x < -88 ? -88 : x;
    x = x > 88 ? 88 : x;
    const float magic = 0x1.8p23f, shifted = x * 1.44269504f + magic, n = shifted - magic;
    const float r = x - n * 0x1.62e4p-1f - n * 0x1.7f7d1cp-20f;
    const float p = r + r * r * (1.f / 2 + r * (1.f / 6 + r * (1.f / 24 + r * (1.f / 120 + r * (1.f / 720 + r * (1.f / 5040))))));
    const uint32_t power = (uint32_t)((n == n ? (int)n : 0) + 127) << 23;
    float scale;
    memcpy(&scale, &power, 4);
    return scale * p + (scale - 1);
}

INLINE float sigmoid(float x) { return 1 / (2 + less_one(-x)); }

INLINE float tangent(float x) {
    const float y = less_one(2 * x);
    return y > 1e30f ? 1 : y / (y + 2);
}

/* One step of some rows: from gates before their squashing to gates, cells, their tanh, and outputs. */
VECTORS static void forward_row(long h, float *restrict gates, const float *restrict before, float *restrict cell,
                                float *restrict squashed, float *restrict output) {
    for (long j = 0; j < 2 * h; j++) gates[j] = sigmoid(gates[j]);
    for (long j = 2 * h; j < 3 * h; j++) gates[j] = tangent(gates[j]);
    for (long j = 3 * h; j < 4 * h; j++) gates[j] = sigmoid(gates[j]);
    for (long j = 0; j < h; j++) cell[j] = gates[h + j] * before[j] + gates[j] * gates[2 * h + j];
    for (long j = 0; j < h; j++) squashed[j] = tangent(cell[j]);
    for (long j = 0; j < h; j++) output[j] = gates[3 * h + j] * squashed[j];
}

/* gates [T, B, 4H] hold W_ih x + b and become i, f, g, o; hidden [T+1, B, H] (with strides) and cells [T+1, B, H] are filled
 * from row 1 on, squashed [T, B, H] with tanh of the cells. Returns 0, or 1 if there was no memory.
 */
int confide_scan(float *gates, float *hidden, long hidden_time, long hidden_row, float *cells, float *squashed, const float *w,
                 long times, long batch, long h, int threads) {
    float *packed = malloc((4 * h + SIDE) * h * sizeof(float));
    if (packed == NULL) return 1;
    by_panels(w, 4 * h, h, h, 1, packed);
#pragma omp parallel for num_threads(threads) schedule(static, 1) if (threads > 1)
    for (long part = 0; part < threads; part++) {
        const long first = batch * part / threads, rows = batch * (part + 1) / threads - first;
        for (long t = 0; t < times && rows; t++) {
            float *now = gates + (t * batch + first) * 4 * h, *out = hidden + t * hidden_time + first * hidden_row;
            add_product(rows, out, hidden_row, packed, h, now, 4 * h, 4 * h);
            for (long r = 0; r < rows; r++) {
                const long at = (t * batch + first + r) * h;
                forward_row(h, now + r * 4 * h, cells + at, cells + at + batch * h, squashed + at, out + hidden_time + r * hidden_row);
            }
        }
    }
    free(packed);
    return 0;
}

VECTORS static void backward_row(long h, const float *restrict gates, const float *restrict before, const float *restrict squashed,
                                 const float *restrict dh, float *restrict dc, float *restrict gradient) {
    for (long j = 0; j < h; j++) {
        const float i = gates[j], f = gates[h + j], g = gates[2 * h + j], o = gates[3 * h + j], s = squashed[j];
        const float c = dc[j] + dh[j] * o * (1 - s * s);
        gradient[j] = c * g * i * (1 - i);
        gradient[h + j] = c * before[j] * f * (1 - f);
        gradient[2 * h + j] = c * i * (1 - g * g);
        gradient[3 * h + j] = dh[j] * s * o * (1 - o);
        dc[j] = c * f;
    }
}

/* From the gradients of all outputs [T, B, H] (with strides) and of the last state, dh and dc [B, H], to those of the gates
 * [T, B, 4H] and, in dc, of the first cell. Returns 0, or 1 if there was no memory.
 */
int confide_scan_back(const float *outputs, long outputs_time, long outputs_row, float *dh, float *dc, const float *cells,
                      const float *gates, const float *squashed, const float *w, float *gradient, long times, long batch, long h,
                      int threads) {
    float *packed = malloc((h + SIDE) * 4 * h * sizeof(float));
    if (packed == NULL) return 1;
    by_panels(w, h, 4 * h, 1, h, packed);
#pragma omp parallel for num_threads(threads) schedule(static, 1) if (threads > 1)
    for (long part = 0; part < threads; part++) {
        const long first = batch * part / threads, rows = batch * (part + 1) / threads - first;
        for (long t = times - 1; t >= 0 && rows; t--) {
            for (long r = first; r < first + rows; r++) {
                const float *out = outputs + t * outputs_time + r * outputs_row;
                const long at = t * batch + r;
                for (long j = 0; j < h; j++) dh[r * h + j] += out[j];
                backward_row(h, gates + at * 4 * h, cells + at * h, squashed + at * h, dh + r * h, dc + r * h, gradient + at * 4 * h);
            }
            memset(dh + first * h, 0, rows * h * sizeof(float));
            add_product(rows, gradient + (t * batch + first) * 4 * h, 4 * h, packed, 4 * h, dh + first * h, h, h);
        }
    }
    free(packed);
    return 0;
}
#endif
