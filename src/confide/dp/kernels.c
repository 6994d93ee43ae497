/* Squared norms of sums of outer products, from Gram matrices that are never stored whole.
 *
 * In: activations and output gradients of a batch, float32, the features of a row next to each other in memory. Out: for each
 * example Σ_ts (a_t·a_s + b_t b_s)(g_t·g_s) and Σ_t |a_t||g_t|. Inner products are taken of 512 terms at a time, in single
 * precision and in eight or sixteen lanes, so that no number adds up more than 64 terms; what they give is added in double.
 */
#include <immintrin.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    ROWS = 3, COLUMNS = 4,          /* of a tile: twelve sums, three rows and one column at a time fill the registers */
    BLOCK = 9,                      /* rows that stay in the first-level cache while columns go by */
    PANEL = 132,                    /* rows and columns of the part of a matrix that is formed at a time */
    DEPTH = 512, STRIDE = DEPTH + 16,  /* terms at a time; rows so far apart do not meet in the cache */
};

typedef struct {
    const float *at;                /* the first example */
    long example, row, features;    /* how far apart examples and rows are, and how long a row is */
} Batch;

typedef void (*Tile)(const float *x, const float *y, long n, double *out);

static inline __attribute__((always_inline, target("avx2,fma"))) void
into(__m256 a, __m256 b, __m256 c, __m256 d, double *out) {
    const __m256 sums = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1));
    _mm256_storeu_pd(out, _mm256_add_pd(_mm256_loadu_pd(out), _mm256_cvtps_pd(four)));
}

/* The inner products of three rows of x with four of y, of n terms (a multiple of 16), added to out[3][PANEL]. */
__attribute__((target("avx2,fma"))) static void tile_avx2(const float *x, const float *y, long n, double *out) {
    __m256 sum[ROWS][COLUMNS];
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLUMNS; j++) sum[i][j] = _mm256_setzero_ps();
    for (long k = 0; k < n; k += 8) {
        const __m256 a = _mm256_loadu_ps(x + k), b = _mm256_loadu_ps(x + STRIDE + k), c = _mm256_loadu_ps(x + 2 * STRIDE + k);
        for (int j = 0; j < COLUMNS; j++) {
            const __m256 v = _mm256_loadu_ps(y + j * STRIDE + k);
            sum[0][j] = _mm256_fmadd_ps(a, v, sum[0][j]);
            sum[1][j] = _mm256_fmadd_ps(b, v, sum[1][j]);
            sum[2][j] = _mm256_fmadd_ps(c, v, sum[2][j]);
        }
    }
    for (int i = 0; i < ROWS; i++) into(sum[i][0], sum[i][1], sum[i][2], sum[i][3], out + i * PANEL);
}

static inline __attribute__((always_inline, target("avx512f,avx512dq"))) __m256 halves(__m512 v) {
    return _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
}

__attribute__((target("avx512f,avx512dq,avx2,fma"))) static void
tile_avx512(const float *x, const float *y, long n, double *out) {
    __m512 sum[ROWS][COLUMNS];
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLUMNS; j++) sum[i][j] = _mm512_setzero_ps();
    for (long k = 0; k < n; k += 16) {
        const __m512 a = _mm512_loadu_ps(x + k), b = _mm512_loadu_ps(x + STRIDE + k), c = _mm512_loadu_ps(x + 2 * STRIDE + k);
        for (int j = 0; j < COLUMNS; j++) {
            const __m512 v = _mm512_loadu_ps(y + j * STRIDE + k);
            sum[0][j] = _mm512_fmadd_ps(a, v, sum[0][j]);
            sum[1][j] = _mm512_fmadd_ps(b, v, sum[1][j]);
            sum[2][j] = _mm512_fmadd_ps(c, v, sum[2][j]);
        }
    }
    for (int i = 0; i < ROWS; i++)
        into(halves(sum[i][0]), halves(sum[i][1]), halves(sum[i][2]), halves(sum[i][3]), out + i * PANEL);
}

static Tile tile;

/* Whether this processor has what the loops need. */
int confide_kernels(void) {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")) tile = tile_avx512;
    else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) tile = tile_avx2;
    return tile != NULL;
}

static inline long least(long a, long b) { return a < b ? a : b; }

/* Copy n terms of some rows to where they lie close together, with zeros up to a whole number of tiles and lanes. */
static void pack(const Batch *batch, const float *from, long rows, long n, float *to) {
    const long all = (rows + 11) / 12 * 12, wide = (n + 15) / 16 * 16;
    for (long i = 0; i < all; i++) {
        if (i < rows) memcpy(to + i * STRIDE, from + i * batch->row, n * sizeof(float));
        const long filled = i < rows ? n : 0;
        memset(to + i * STRIDE + filled, 0, (wide - filled) * sizeof(float));
    }
}

/* Inner products of `rows` rows from `first` on with `columns` rows from `other` on, of one example, into out[PANEL][PANEL].
 * Of a panel with itself only the tiles at the diagonal and below are formed.
 */
static void products(const Batch *batch, long example, long first, long rows, long other, long columns, float *packed, double *out) {
    const float *base = batch->at + example * batch->example;
    float *x = packed, *y = first == other ? x : x + PANEL * STRIDE;
    memset(out, 0, PANEL * PANEL * sizeof(double));
    for (long from = 0; from < batch->features; from += DEPTH) {
        const long n = least(batch->features - from, DEPTH), wide = (n + 15) / 16 * 16;
        pack(batch, base + first * batch->row + from, rows, n, x);
        if (x != y) pack(batch, base + other * batch->row + from, columns, n, y);
        for (long block = 0; block < rows; block += BLOCK) {
            const long last = least(block + BLOCK, rows), end = x == y ? least(last, columns) : columns;
            for (long j = 0; j < end; j += COLUMNS)
                for (long i = block; i < last; i += ROWS)
                    if (x != y || j < i + ROWS) tile(x + i * STRIDE, y + j * STRIDE, wide, out + i * PANEL + j);
        }
    }
}

static int zero(const Batch *batch, long example, long row) {
    const float *at = batch->at + example * batch->example + row * batch->row;
    for (long k = 0; k < batch->features; k++)
        if (at[k] != 0) return 0;
    return 1;
}

/* square[e] = Σ_ts (a_t·a_s + extra + b_t b_s)(g_t·g_s) and spread[e] = Σ_t √((a_t·a_t + …)(g_t·g_t)), in a fixed order. `scale`
 * holds b [examples, positions], or is NULL. Where a squared length below `tiny` belongs to a row that is not zero, the
 * spread is infinite. Returns 0, or 1 if there was no memory.
 */
int confide_gram(const float *a, long a_example, long a_row, long a_features, const float *g, long g_example, long g_row,
                 long g_features, const float *scale, double extra, double tiny, long examples, long positions, int threads,
                 double *square, double *spread) {
    const Batch left = {a, a_example, a_row, a_features}, right = {g, g_example, g_row, g_features};
    const long panels = (positions + PANEL - 1) / PANEL, pairs = panels * (panels + 1) / 2, tasks = examples * pairs;
    double *parts = malloc(2 * tasks * sizeof(double));
    if (parts == NULL) return 1;
    int failed = 0;
#pragma omp parallel num_threads(threads)
    {
        double *by_a = aligned_alloc(64, 2 * PANEL * PANEL * sizeof(double) + 2 * PANEL * STRIDE * sizeof(float));
        double *by_g = by_a + PANEL * PANEL;
        float *packed = (float *)(by_g + PANEL * PANEL);
        if (by_a == NULL) {
#pragma omp atomic write
            failed = 1;
        }
#pragma omp for schedule(dynamic, 1)
        for (long task = 0; task < tasks; task++) {
            if (by_a == NULL) continue;
            const long e = task / pairs;
            long panel = 0, pair = task % pairs;
            while (pair > panel) pair -= ++panel;
            const long first = positions * panel / panels, rows = positions * (panel + 1) / panels - first;
            const long other = positions * pair / panels, columns = positions * (pair + 1) / panels - other;
            const float *b = scale == NULL ? NULL : scale + e * positions;
            products(&left, e, first, rows, other, columns, packed, by_a);
            products(&right, e, first, rows, other, columns, packed, by_g);
            double sum = 0, lengths = 0;
            for (long i = 0; i < rows; i++) {
                const double *x = by_a + i * PANEL, *y = by_g + i * PANEL;
                const long end = first == other ? i : columns;
                double line = 0;
                for (long j = 0; j < end; j++)
                    line += (x[j] + (b == NULL ? extra : (double)b[first + i] * b[other + j])) * y[j];
                sum += 2 * line;
                if (first != other) continue;
                const double own = x[i] + (b == NULL ? extra : (double)b[first + i] * b[first + i]);
                sum += own * y[i];
                lengths += sqrt(own * y[i]);
                if ((own < tiny && !zero(&left, e, first + i)) || (y[i] < tiny && !zero(&right, e, first + i)))
                    lengths = INFINITY;
            }
            parts[2 * task] = sum;
            parts[2 * task + 1] = lengths;
        }
        free(by_a);
    }
    for (long e = 0; e < examples; e++) {
        square[e] = spread[e] = 0;
        for (long pair = 0; pair < pairs; pair++) {
            square[e] += parts[2 * (e * pairs + pair)];
            spread[e] += parts[2 * (e * pairs + pair) + 1];
        }
    }
    free(parts);
    return failed;
}

/* --- The recurrence of an LSTM. Rows of the batch never meet, so that each thread takes its rows through all of time. */

typedef float Eight __attribute__((vector_size(32), aligned(4), may_alias));

enum { SIDE = 16, MOST = 6 };  /* columns of a packed panel; rows that are multiplied with it at a time */
#define VECTORS __attribute__((target("avx2,fma")))
#define INLINE static inline __attribute__((always_inline, target("avx2,fma")))

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
    const int power = ((int)n + 127) << 23;
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
#pragma omp parallel for num_threads(threads) schedule(static, 1)
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
#pragma omp parallel for num_threads(threads) schedule(static, 1)
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
