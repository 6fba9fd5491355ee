/* Differences between blocks in C: one call for a block, without the interpreter's lock.
 *
 * docs/format/differences.md is the norm, and differences.py the reference for decoding. The CRC is the caller's
 * business: `encode` leaves its four bytes zero, and `decode` does not look at them.
 *
 *   encode(base, new, out, work, width, exponent, row, before) -> int
 *       Encode `new` as its difference from `base`, of the same size, a multiple of `width` bytes. `exponent` is how
 *       many bits of an element give its context, those beneath the highest, or 0. `row` is how many elements a row of
 *       their matrix has, or 0, and `before` how many of the first row lie before the block. Returns the payload's
 *       size, at the start of `out`, or 0 if it would take more than len(out) - 8 bytes.
 *
 *   decode(base, payload, out, work) -> bool
 *       Fill `out`, of the size of `base`, with what the difference makes of it. False: the payload is damaged, or has
 *       what `encode` never writes; the contents of `out` are then undefined, and the reference decodes it or names
 *       the damage.
 *
 * `work` has at least work_size(len(base)) bytes. What _kernel.c states holds here, too: input may be hostile, nothing
 * is read or written outside the buffers, even if another thread writes to them; time is linear in their sizes; no
 * memory is allocated and no state kept; and results are the same on every machine that rounds floats alike.
 *
 * Sets are bitmaps here. A set in bands is one bitmap for each band, of its elements alone: with a mask of each band for
 * 64 elements, PEXT takes a bitmap apart into those of the bands, and PDEP puts them together. Processors that have no
 * fast PEXT do the same bit by bit.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h> /* setup.py defines Py_LIMITED_API */
#include <stdint.h>
#include <string.h>

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "streamxf's kernel is for little-endian machines; without it the Python reference is used"
#endif

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;

#define RESTRICT __restrict
#define INLINE static inline __attribute__((always_inline))
INLINE u64 rd64(const void *p) { u64 v; memcpy(&v, p, 8); return v; }
INLINE u32 rd32(const void *p) { u32 v; memcpy(&v, p, 4); return v; }
INLINE u16 rd16(const void *p) { u16 v; memcpy(&v, p, 2); return v; }
INLINE void wr64(void *p, u64 v) { memcpy(p, &v, 8); }
INLINE void wr32(void *p, u32 v) { memcpy(p, &v, 4); }
INLINE void wr16(void *p, u16 v) { memcpy(p, &v, 2); }
INLINE int bits_of(u64 v) { return v ? 64 - __builtin_clzll(v) : 0; }
INLINE u64 low_bits(int count) { return count < 64 ? ((u64)1 << count) - 1 : ~(u64)0; }

enum {
    HEAD = 6, /* bytes: layout, CRC, levels */
    MAX_SIZE = 128 << 20,
    MAX_BANDS = 8,
    NONE = 31,        /* in place of k */
    BANDS = 6,        /* that are written: more gain one percent */
    LEAST = 256,      /* elements of a set in bands */
    CLASSES = 64,     /* of contexts, between which bands are cut */
    SAMPLE = 1 << 13, /* elements that are counted for that */
};
static const float BAND_BITS = 20, ROWS_BITS = 40; /* that a band or rows take for themselves */

/* -- what differs between processors ------------------------------------------------------------------------------- */

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12
#if defined(__AVX2__) && defined(__BMI2__) /* a target of the compiler beyond it would not inline into it */
#define AT_V3
#else
#define AT_V3 __attribute__((target("arch=x86-64-v3")))
#endif
typedef u8 Bytes32 __attribute__((vector_size(32)));
typedef char Chars32 __attribute__((vector_size(32)));
AT_V3 static inline u64 pext_v3(u64 value, u64 mask) { return __builtin_ia32_pext_di(value, mask); }
AT_V3 static inline u64 pdep_v3(u64 value, u64 mask) { return __builtin_ia32_pdep_di(value, mask); }
AT_V3 static inline u64 at_most_v3(const u8 *bytes, u8 limit)
{
    Bytes32 a, b;
    memcpy(&a, bytes, 32);
    memcpy(&b, bytes + 32, 32);
    u32 low = (u32)__builtin_ia32_pmovmskb256((Chars32)(a <= limit));
    return low | (u64)(u32)__builtin_ia32_pmovmskb256((Chars32)(b <= limit)) << 32;
}
static int has_v3(void)
{
#ifdef STREAMXF_MOST
    if (STREAMXF_MOST < 128)
        return 0;
#endif
    return __builtin_cpu_supports("x86-64-v3") && !__builtin_cpu_is("znver1") && !__builtin_cpu_is("znver2");
}
#else
#define AT_V3
#define pext_v3(value, mask) 0
#define pdep_v3(value, mask) 0
#define at_most_v3(bytes, limit) 0
static int has_v3(void) { return 0; }
#endif

/* The bits of a value that a mask names, side by side; and back to their places. */
INLINE u64 gathered(u64 value, u64 mask, int v3)
{
    if (v3)
        return pext_v3(value, mask);
    u64 made = 0;
    for (int at = 0; mask; mask &= mask - 1)
        made |= (value >> __builtin_ctzll(mask) & 1) << at++;
    return made;
}
INLINE u64 scattered(u64 value, u64 mask, int v3)
{
    if (v3)
        return pdep_v3(value, mask);
    u64 made = 0;
    for (; mask && value; mask &= mask - 1, value >>= 1)
        made |= mask & -mask & -(value & 1);
    return made;
}
/* Which of 64 bytes are at most this. */
INLINE u64 at_most(const u8 *bytes, u8 limit, int v3)
{
    if (v3)
        return at_most_v3(bytes, limit);
    u64 made = 0;
    for (int i = 0; i < 64; i++)
        made |= (u64)(bytes[i] <= limit) << i;
    return made;
}

/* -- bits ---------------------------------------------------------------------------------------------------------- */

typedef struct {
    const u8 *in; /* with zeros behind it */
    u64 at, end;
} Reader;

INLINE u64 peek(const u8 *in, u64 at) { return rd64(in + (at >> 3)) >> (at & 7); } /* 57 bits or more */
INLINE u64 fetch(const u8 *in, u64 at) /* 64 bits */
{
    return peek(in, at) | (u64)in[(at >> 3) + 8] << 1 << (63 - (at & 7));
}

static u32 take(Reader *r, int count) /* what lies beyond the end is 0, and found out later: `at` is then beyond it */
{
    u32 value = r->at <= r->end ? (u32)(peek(r->in, r->at) & low_bits(count)) : 0;
    r->at += (u64)count;
    return value;
}

typedef struct {
    u8 *at, *end; /* behind which there is room for 8 bytes */
    u64 bits;
    int count;
    int full;
} Writer;

INLINE void put(Writer *w, u64 value, int count) /* up to 56 bits */
{
    w->bits |= value << w->count;
    w->count += count;
    if (w->at > w->end) {
        w->full = 1;
        w->count = 0, w->bits = 0;
        return;
    }
    wr64(w->at, w->bits);
    w->at += w->count >> 3;
    w->bits >>= w->count & ~7;
    w->count &= 7;
}

static void put_number(Writer *w, u32 value)
{
    put(w, (u64)bits_of(value), 5);
    put(w, value, bits_of(value));
}

/* -- sets ---------------------------------------------------------------------------------------------------------- */

/* A set of some of `count` elements: those of `among`, or any, whose contexts tell the band; without contexts there is
 * one band. */
typedef struct {
    const u8 *contexts; /* for 64 at a time */
    const u64 *among;
    size_t count;
    u64 *masks;  /* work: for each 64 elements, that of each band; or all bitmaps, while a set is written */
    u8 *bitmaps; /* work: of the bands, one after the other, while a set is read */
    u32 *places; /* work: of a band's members, among its elements */
    /* of the bands: */
    int bands;
    u8 cuts[MAX_BANDS];
    u64 sizes[MAX_BANDS];
    u8 *bits[MAX_BANDS];
} Set;

INLINE size_t words(size_t bits) { return (bits + 63) / 64; }
INLINE u64 tail(size_t count, size_t word) { return count - 64 * word < 64 ? low_bits((int)(count - 64 * word)) : ~(u64)0; }
INLINE u64 among(const Set *s, size_t word) { return s->among ? s->among[word] : tail(s->count, word); }

static u64 count_bits(const u64 *bitmap, size_t count)
{
    u64 held = 0;
    for (size_t g = 0; g < words(count); g++)
        held += (u64)__builtin_popcountll(bitmap[g]);
    return held;
}

/* Where the bits of a bitmap are; `places` has room for four more. */
INLINE size_t list_places(const u8 *bitmap, size_t count, u64 fill, u32 *RESTRICT places)
{
    size_t held = 0;
    for (size_t g = 0; g < words(count); g++) {
        u64 left = (rd64(bitmap + 8 * g) ^ fill) & tail(count, g);
        int more = __builtin_popcountll(left);
        u32 *to = places + held;
        held += (size_t)more;
        for (int k = 0; k < 4; k++, left &= left - 1) /* without a branch that depends on how many there are */
            *to++ = (u32)(64 * g) + (u32)__builtin_ctzll(left | (u64)1 << 63);
        for (; more > 4; more--, left &= left - 1)
            *to++ = (u32)(64 * g) + (u32)__builtin_ctzll(left);
    }
    return held;
}

/* With one band of all elements, its bitmap is that of the members. */
INLINE int is_whole(const Set *s) { return s->bands == 1 && !s->among; }

/* The mask of each band, for the 64 elements of a word. */
INLINE void mask_word(const Set *s, const u8 *cuts, size_t word, int bands, u64 *masks, int v3)
{
    u64 all = among(s, word), before = 0;
    for (int b = 0; b < bands; b++) {
        u64 below = b + 1 < bands ? at_most(s->contexts + 64 * word, cuts[b], v3) & all : all;
        masks[b] = below & ~before;
        before = below;
    }
}

INLINE void mask_some(Set *s, int bands, int v3)
{
    u64 sizes[MAX_BANDS] = {0};
    int last = bands - 1;
    u8 cuts[MAX_BANDS];
    memcpy(cuts, s->cuts, sizeof cuts);
    const u8 *contexts = s->contexts;
    u64 *RESTRICT masks = s->masks;
    for (size_t g = 0, end = words(s->count); g < end; g++, masks += bands) { /* not by mask_word, which is slower here */
        u64 all = among(s, g), before = 0;
        for (int b = 0; b < last; b++) {
            u64 below = at_most(contexts + 64 * g, cuts[b], v3) & all;
            masks[b] = below & ~before;
            sizes[b] += (u64)__builtin_popcountll(masks[b]);
            before = below;
        }
        masks[last] = all & ~before;
        sizes[last] += (u64)__builtin_popcountll(masks[last]);
    }
    u8 *at = s->bitmaps;
    for (int b = 0; b < bands; b++) {
        s->sizes[b] = sizes[b];
        s->bits[b] = at;
        at += 8 * words(sizes[b]) + 16;
    }
}

/* Which of the elements are members, put together from the bitmaps of bands. */
INLINE void merge_some(const Set *s, u64 *RESTRICT members, int bands, int v3)
{
    u64 at[MAX_BANDS] = {0};
    u8 *bits[MAX_BANDS];
    memcpy(bits, s->bits, sizeof bits);
    const u64 *masks = s->masks;
    for (size_t g = 0, end = words(s->count); g < end; g++, masks += bands) {
        u64 found = 0;
        for (int b = 0; b < bands; b++) {
            found |= scattered(fetch(bits[b], at[b]), masks[b], v3);
            at[b] += (u64)__builtin_popcountll(masks[b]);
        }
        members[g] = found;
    }
}

/* The bitmaps of the bands, each where it has room for all elements: in the memory of the masks, which nobody needs. */
INLINE void split_some(Set *s, const u64 *members, int bands, int v3)
{
    u64 kept[MAX_BANDS] = {0}, masks[MAX_BANDS];
    int have[MAX_BANDS] = {0};
    u8 *to[MAX_BANDS], cuts[MAX_BANDS];
    memcpy(cuts, s->cuts, sizeof cuts);
    for (int b = 0; b < bands; b++)
        to[b] = s->bits[b] = (u8 *)s->masks + (size_t)b * (8 * words(s->count) + 8);
    for (size_t g = 0, end = words(s->count); g < end; g++) {
        mask_word(s, cuts, g, bands, masks, v3);
        for (int b = 0; b < bands; b++) {
            u64 bits = gathered(members[g], masks[b], v3);
            u64 word = kept[b] | bits << have[b];
            u64 over = bits >> 1 >> (63 - have[b]);
            int now = have[b] + __builtin_popcountll(masks[b]);
            wr64(to[b], word);
            to[b] += now >> 6 << 3;
            kept[b] = now >> 6 ? over : word;
            have[b] = now & 63;
        }
    }
    for (int b = 0; b < bands; b++) {
        wr64(to[b], kept[b]);
        s->sizes[b] = 8 * (u64)(to[b] - s->bits[b]) + (u64)have[b];
    }
}

/* With as many bands as are written most often, their loops are unrolled. */
INLINE void mask_bands(Set *s, int v3) { s->bands == BANDS ? mask_some(s, BANDS, v3) : mask_some(s, s->bands, v3); }
INLINE void merge_bands(const Set *s, u64 *members, int v3)
{
    s->bands == BANDS ? merge_some(s, members, BANDS, v3) : merge_some(s, members, s->bands, v3);
}
INLINE void split_bands(Set *s, const u64 *members, int v3)
{
    s->bands == BANDS ? split_some(s, members, BANDS, v3) : split_some(s, members, s->bands, v3);
}

/* Read the bitmap of a band of `size` elements. */
INLINE int read_band(Reader *r, u8 *bitmap, u64 size, int k, int inverted)
{
    u64 fill = inverted ? ~(u64)0 : 0, end = words(size) + 1;
    if (k == 0) {
        if (r->at + size >= r->end)
            return 0;
        for (u64 i = 0; i < words(size); i++)
            wr64(bitmap + 8 * i, fetch(r->in, r->at + 64 * i) ^ fill);
        r->at += size;
        return (int)take(r, 1);
    }
    for (u64 i = 0; i < end; i++)
        wr64(bitmap + 8 * i, fill);
    if (k == NONE)
        return 1;
    const u8 *in = r->in;
    u64 at = r->at, place = 0, low = low_bits(k), zeros = 0;
    while (at <= r->end) {
        u64 next = peek(in, at);
        if (!next) { /* 57 zeros at least */
            at += 56, zeros += 56;
            continue;
        }
        for (int left = 57; next;) { /* the codes that are whole in there */
            int more = __builtin_ctzll(next), used = more + 1 + k;
            u64 rest = next >> more >> 1;
            if (used > left) {
                if (left < 57)
                    break;
                rest = peek(in, at + (u64)more + 1); /* of a code longer than that */
            }
            place += ((zeros + (u64)more) << k) + (rest & low);
            zeros = 0;
            at += (u64)used;
            if (place >= size) {
                r->at = at;
                return at <= r->end && place == size;
            }
            bitmap[place >> 3] ^= (u8)(1 << (place & 7));
            place++;
            left -= used;
            if (left < 0)
                break;
            next = rest >> k;
        }
    }
    return 0;
}

INLINE int read_any_set(Reader *r, Set *s, u64 *members, int v3)
{
    u8 k[MAX_BANDS], inverted[MAX_BANDS];
    int more = 1, low = 0;
    for (s->bands = 0; more;) {
        int b = s->bands++;
        more = (int)take(r, 1);
        int cut = more ? (int)take(r, 8) : 255;
        if (cut < low || (more && (cut == 255 || s->bands == MAX_BANDS)))
            return 0;
        low = cut + 1;
        s->cuts[b] = (u8)cut;
        k[b] = (u8)take(r, 5);
        inverted[b] = (u8)take(r, 1);
    }
    if (s->bands > 1 && !s->contexts)
        return 0;
    if (is_whole(s))
        s->sizes[0] = s->count, s->bits[0] = (u8 *)members;
    else
        mask_bands(s, v3);
    for (int b = 0; b < s->bands; b++)
        if (!read_band(r, s->bits[b], s->sizes[b], k[b], inverted[b]))
            return 0;
    if (!is_whole(s))
        merge_bands(s, members, v3);
    else if (s->count)
        members[words(s->count) - 1] &= tail(s->count, words(s->count) - 1);
    return 1;
}

/* log2, to 1e-4. */
INLINE float lg(float x)
{
    u32 bits;
    memcpy(&bits, &x, 4);
    int power = (int)(bits >> 23) - 127;
    bits = (bits & 0x7FFFFF) | 0x3F800000;
    memcpy(&x, &bits, 4);
    float ln = -1.7417939f + (2.8212026f + (-1.4699568f + (0.44717955f - 0.056570851f * x) * x) * x) * x;
    return (float)power + 1.442695f * ln;
}

/* Bits that a set of m of n takes, about. */
static float weigh(float m, float n)
{
    if (m > n - m)
        m = n - m;
    if (m < 1)
        return 0;
    float p = m / n;
    return m * (lg(n / m) + 1.4427f * (1 - p / 2 - p * p / 5));
}

/* Cut the contexts into bands: the cheapest ones, by dynamic programming. */
static void cut_bands(Set *s, const u64 *members)
{
    u32 counts[2][256] = {{0}};
    size_t total = words(s->count), held = count_bits(members, s->count), stride[2];
    if (!held || held == (s->among ? count_bits(s->among, s->count) : s->count))
        return;
    stride[0] = s->count / SAMPLE + 1;
    stride[1] = held / SAMPLE + 1;
    for (int which = 0; which < 2; which++)
        for (size_t g = 0; g < total; g += stride[which])
            for (u64 left = which ? members[g] : among(s, g); left; left &= left - 1)
                counts[which][s->contexts[64 * g + (size_t)__builtin_ctzll(left)]]++;
    int first = 255, last = 0, by = 0;
    for (int c = 0; c < 256; c++)
        if (counts[0][c] || counts[1][c])
            first = c < first ? c : first, last = c;
    while ((last - first) >> by >= CLASSES)
        by++;
    float n[CLASSES + 1] = {0}, m[CLASSES + 1] = {0}; /* in the classes before */
    int ends[CLASSES + 1], classes = 0;
    for (int c = first; c <= last; c += 1 << by) {
        u32 found[2] = {0, 0};
        for (int i = c; i < c + (1 << by) && i < 256; i++)
            found[0] += counts[0][i], found[1] += counts[1][i];
        if (!found[0] && !found[1])
            continue;
        float of = (float)found[0] * (float)stride[0], in = (float)found[1] * (float)stride[1];
        ends[classes++] = c + (1 << by) - 1;
        m[classes] = m[classes - 1] + in;
        n[classes] = n[classes - 1] + (of > in ? of : in);
    }
    float best[BANDS + 1][CLASSES + 1];
    u8 from[BANDS + 1][CLASSES + 1];
    for (int b = 0; b <= BANDS; b++)
        for (int j = 0; j <= CLASSES; j++)
            best[b][j] = b || j ? 1e30f : 0, from[b][j] = 0;
    for (int j = 1; j <= classes; j++)
        for (int i = 0; i < j; i++) {
            float cost = weigh(m[j] - m[i], n[j] - n[i]) + BAND_BITS;
            for (int b = 1; b <= BANDS; b++)
                if (best[b - 1][i] + cost < best[b][j])
                    best[b][j] = best[b - 1][i] + cost, from[b][j] = (u8)i;
        }
    s->bands = 1;
    for (int b = 2; b <= BANDS; b++)
        if (best[b][classes] < best[s->bands][classes])
            s->bands = b;
    s->cuts[s->bands - 1] = 255;
    for (int b = s->bands - 1, j = classes; b > 0; b--) {
        j = from[b + 1][j];
        s->cuts[b - 1] = (u8)ends[j - 1];
    }
}

/* The best k for `held` gaps, and one more, of a band. */
INLINE int choose_k(const u32 *places, u64 held, u64 size)
{
    int k = 1;
    while (k < 28 && (held << k) * 7 < size * 4) /* ln of 1 / 0.618, about a half, against a mean gap */
        k++;
    u64 cost[3] = {0, held + 1, 2 * (held + 1)};
    u32 before = (u32)-1;
    for (u64 i = 0; i < held; i++) {
        u32 gap = places[i] - before - 1;
        for (int t = 0; t < 3; t++)
            cost[t] += gap >> (k - 1 + t);
        before = places[i];
    }
    return k + (cost[1] <= cost[0] ? cost[2] < cost[1] : cost[2] < cost[0] ? 1 : -1);
}

INLINE void put_gap(Writer *w, u32 gap, int k)
{
    u32 zeros = gap >> k;
    for (; zeros > 24; zeros -= 24)
        put(w, 0, 24);
    put(w, (u64)1 << zeros | (gap & low_bits(k)) << 1 << zeros, (int)zeros + 1 + k);
}

INLINE void write_any_set(Writer *to, Set *s, const u64 *members, int v3)
{
    s->bands = 1;
    if (s->contexts && s->count >= LEAST)
        cut_bands(s, members);
    if (is_whole(s))
        s->sizes[0] = s->count, s->bits[0] = (u8 *)members;
    else
        split_bands(s, members, v3);
    int k[MAX_BANDS];
    u64 fill[MAX_BANDS];
    size_t held[MAX_BANDS];
    u32 *places = s->places;
    Writer w = *to;
    for (int b = 0; b < s->bands; b++) {
        size_t size = s->sizes[b];
        fill[b] = 0;
        for (held[b] = 0; ; fill[b] = ~(u64)0) {
            held[b] = 0;
            for (size_t g = 0; g < words(size); g++)
                held[b] += (size_t)__builtin_popcountll((rd64(s->bits[b] + 8 * g) ^ fill[b]) & tail(size, g));
            if (2 * held[b] <= size)
                break;
        }
        k[b] = NONE;
        if (held[b]) {
            list_places(s->bits[b], size, fill[b], places);
            k[b] = choose_k(places, held[b], size);
            places += k[b] ? held[b] : 0;
        }
        int more = b + 1 < s->bands;
        put(&w, (u64)more | (u64)(more ? s->cuts[b] : 0) << 1, more ? 9 : 1);
        put(&w, (u64)k[b] | (fill[b] & 1) << 5, 6);
    }
    places = s->places;
    for (int b = 0; b < s->bands; b++) {
        size_t size = s->sizes[b];
        u32 place = 0;
        if (k[b] == NONE)
            continue;
        if (k[b]) {
            for (size_t i = 0; i < held[b]; i++) {
                put_gap(&w, places[i] - place, k[b]);
                place = places[i] + 1;
            }
            put_gap(&w, (u32)size - place, k[b]);
            places += held[b];
        } else {
            for (size_t g = 0; g < words(size); g++) {
                u64 bits = (rd64(s->bits[b] + 8 * g) ^ fill[b]) & tail(size, g);
                int count = size - 64 * g < 64 ? (int)(size - 64 * g) : 64;
                put(&w, bits & low_bits(32), count < 32 ? count : 32);
                if (count > 32)
                    put(&w, bits >> 32, count - 32);
            }
            put(&w, 1, 1);
        }
    }
    *to = w;
}

static int read_plain(Reader *r, Set *s, u64 *members) { return read_any_set(r, s, members, 0); }
AT_V3 static int read_v3(Reader *r, Set *s, u64 *members) { return read_any_set(r, s, members, 1); }
static void write_plain(Writer *w, Set *s, const u64 *members) { write_any_set(w, s, members, 0); }
AT_V3 static void write_v3(Writer *w, Set *s, const u64 *members) { write_any_set(w, s, members, 1); }
INLINE int read_set(Reader *r, Set *s, u64 *members, int v3) { return (v3 ? read_v3 : read_plain)(r, s, members); }
INLINE void write_set(Writer *w, Set *s, const u64 *members, int v3) { (v3 ? write_v3 : write_plain)(w, s, members); }

/* -- blocks -------------------------------------------------------------------------------------------------------- */

typedef struct {
    size_t count, row, before; /* elements */
    u8 *contexts, *payload, *levels, *found; /* `found`: contexts of the elements that changed */
    u32 *places, *deltas; /* of the elements that changed; one memory */
    u64 *live, *changed, *negative, *left, *higher; /* the last three for the elements that changed */
    Set set;
} Block;

static size_t work_size(size_t size) { return 12 * size + 8192; }

static void open_block(Block *t, u8 *work, size_t size, int width)
{
    size_t n = size / (size_t)width, bytes = 64 * words(n) + 64, bits = 8 * words(n) + 16;
    work += -(uintptr_t)work & 63;
    t->count = n;
    t->payload = work, work += (size + 127) & ~(size_t)63; /* with 64 zeros; and what follows is aligned */
    u8 **of_bytes[] = {&t->contexts, &t->levels, &t->found};
    for (int i = 0; i < 3; i++, work += bytes)
        *of_bytes[i] = work;
    u64 **of_bits[] = {&t->live, &t->changed, &t->negative, &t->left, &t->higher};
    for (int i = 0; i < 5; i++, work += bits)
        *of_bits[i] = (u64 *)(void *)work;
    t->set.bitmaps = work, work += bits + 24 * MAX_BANDS;
    t->set.masks = (u64 *)(void *)work, work += MAX_BANDS * (bits + 8);
    t->places = t->deltas = (u32 *)(void *)work, work += 4 * n + 32;
    t->set.places = (u32 *)(void *)work; /* of half of the elements, at most */
}

static void fill_bits(u64 *bitmap, size_t begin, size_t end)
{
    for (size_t i = begin; i < end;) {
        int at = (int)(i & 63), count = end - i < (size_t)(64 - at) ? (int)(end - i) : 64 - at;
        bitmap[i >> 6] |= low_bits(count) << at;
        i += (size_t)count;
    }
}

static void all_bits(u64 *bitmap, size_t count)
{
    memset(bitmap, 255, count / 64 * 8);
    if (count & 63)
        bitmap[count / 64] = low_bits((int)(count & 63));
}

/* The elements of the rows that are in `rows`. */
static void spread_rows(Block *t, const u64 *rows)
{
    memset(t->live, 0, 8 * words(t->count));
    size_t number = words((t->before + t->count + t->row - 1) / t->row);
    for (size_t g = 0; g < number; g++)
        for (u64 left = rows[g]; left; left &= left - 1) {
            size_t begin = (64 * g + (size_t)__builtin_ctzll(left)) * t->row, end = begin + t->row - t->before;
            begin = begin > t->before ? begin - t->before : 0;
            fill_bits(t->live, begin, end < t->count ? end : t->count);
        }
}

INLINE u32 element(const u8 *block, size_t i, int width)
{
    return width == 4 ? rd32(block + 4 * i) : width == 2 ? rd16(block + 2 * i) : block[i];
}

INLINE u8 context(u32 element, int width, int exponent)
{
    return (u8)(element >> (8 * width - 1 - exponent) & ((1u << exponent) - 1));
}

/* Copy the base and find its contexts. */
INLINE void copy_base(const u8 *RESTRICT base, u8 *RESTRICT out, Block *t, int width, int exponent)
{
    u8 *RESTRICT to = t->contexts;
    size_t n = t->count, i = 0;
    for (; i + 64 <= n; i += 64) {
        memcpy(out + i * (size_t)width, base + i * (size_t)width, 64 * (size_t)width);
        for (size_t k = i; exponent && k < i + 64; k++)
            to[k] = context(element(base, k, width), width, exponent);
    }
    memcpy(out + i * (size_t)width, base + i * (size_t)width, (n - i) * (size_t)width);
    for (; exponent && i < n; i++)
        to[i] = context(element(base, i, width), width, exponent);
}

/* Of 64 elements. */
INLINE void find_same(const u8 *RESTRICT a, const u8 *RESTRICT b, u8 *RESTRICT same, int width)
{
    for (size_t k = 0; k < 64; k++)
        same[k] = element(a, k, width) == element(b, k, width);
}
INLINE void find_contexts(const u8 *RESTRICT a, u8 *RESTRICT contexts, int width, int exponent)
{
    for (size_t k = 0; k < 64; k++)
        contexts[k] = context(element(a, k, width), width, exponent);
}

/* Find the elements that changed, and by how much; and contexts, of those and of all. Returns how many changed. */
INLINE size_t compare(const u8 *RESTRICT base, const u8 *RESTRICT new, Block *t, int width, int exponent, int v3)
{
    size_t n = t->count, m = 0;
    u8 *RESTRICT contexts = t->contexts, *RESTRICT found = t->found;
    u32 *RESTRICT deltas = t->deltas;
    for (size_t g = 0; g < words(n); g++) {
        const u8 *a = base + 64 * g * (size_t)width, *b = new + 64 * g * (size_t)width;
        u8 same[64], last[2][256];
        if (n - 64 * g < 64) {
            memset(last, 0, sizeof last);
            memcpy(last[0], a, (n - 64 * g) * (size_t)width);
            memcpy(last[1], b, (n - 64 * g) * (size_t)width);
            a = last[0], b = last[1];
        }
        find_same(a, b, same, width);
        if (exponent)
            find_contexts(a, contexts + 64 * g, width, exponent);
        u64 left = at_most(same, 0, v3);
        t->changed[g] = left;
        int more = __builtin_popcountll(left);
        size_t end = m + (size_t)more;
        for (size_t c = m; c < end; c += 4) /* four at a time, without a branch for each */
            for (size_t k = c; k < c + 4; k++, left &= left - 1) {
                size_t i = (size_t)__builtin_ctzll(left | (u64)1 << 63);
                deltas[k] = element(b, i, width) - element(a, i, width);
                if (exponent)
                    found[k] = context(element(a, i, width), width, exponent);
            }
        m = end;
    }
    return m;
}

/* Of the elements that changed. */
INLINE void find_found(Block *t, size_t m)
{
    u8 *RESTRICT found = t->found;
    const u8 *contexts = t->contexts;
    const u32 *places = t->places;
    for (size_t c = 0; c < m; c++)
        found[c] = contexts[places[c]];
}

/* The set that comes next, of `count` elements. */
INLINE Set *next_set(Block *t, const u8 *contexts, const u64 *among, size_t count)
{
    t->set.contexts = contexts, t->set.among = among, t->set.count = count;
    return &t->set;
}

INLINE int decode_block(const u8 *base, Reader *r, u8 *out, Block *t, int levels, int width, int exponent, int v3)
{
    const u64 *live = NULL;
    copy_base(base, out, t, width, exponent);
    if (!levels)
        return r->at == r->end;
    if (take(r, 1)) {
        t->row = take(r, (int)take(r, 5));
        t->before = take(r, (int)take(r, 5));
        if (t->before >= t->row || t->row > t->count)
            return 0;
        size_t rows = (t->before + t->count + t->row - 1) / t->row; /* at most `count` + 1 */
        if (!read_set(r, next_set(t, NULL, NULL, rows), t->higher, v3))
            return 0;
        spread_rows(t, t->higher);
        live = t->live;
    }
    if (!read_set(r, next_set(t, exponent ? t->contexts : NULL, live, t->count), t->changed, v3))
        return 0;
    size_t m = list_places((u8 *)t->changed, t->count, 0, t->places);
    const u32 *places = t->places;
    if (exponent)
        find_found(t, m);
    const u8 *found = exponent ? t->found : NULL;
    if (!read_set(r, next_set(t, found, NULL, m), t->negative, v3))
        return 0;
    memset(t->levels, 0, m);
    all_bits(t->left, m);
    int all = 1;
    for (int level = 1; level < levels; level++) {
        if (!read_set(r, next_set(t, found, all ? NULL : t->left, m), t->higher, v3))
            return 0;
        all = all && count_bits(t->higher, m) == m; /* as in the lower half of all levels, if most bits changed */
        if (all)
            continue;
        for (size_t g = 0; g < words(m); g++)
            for (u64 ends = t->left[g] & ~t->higher[g]; level > 1 && ends; ends &= ends - 1)
                t->levels[64 * g + (size_t)__builtin_ctzll(ends)] = (u8)(level - 1);
        u64 *swap = t->left;
        t->left = t->higher, t->higher = swap;
    }
    for (size_t g = 0; levels > 1 && g < words(m); g++)
        for (u64 ends = t->left[g]; ends; ends &= ends - 1)
            t->levels[64 * g + (size_t)__builtin_ctzll(ends)] = (u8)(levels - 1);
    const u8 *lows = t->levels, *in = r->in;
    const u64 *signs = t->negative;
    u64 at = r->at, end = r->end;
    for (size_t c = 0; c < m; c++) {
        size_t i = places[c];
        int low = lows[c];
        u32 delta = 1u << low | (u32)(peek(in, at < end ? at : end) & low_bits(low));
        at += (u64)low;
        u32 sign = -(u32)(signs[c >> 6] >> (c & 63) & 1);
        delta = (delta ^ sign) - sign + element(out, i, width);
        if (width == 4)
            wr32(out + 4 * i, delta);
        else if (width == 2)
            wr16(out + 2 * i, (u16)delta);
        else
            out[i] = (u8)delta;
    }
    r->at = at;
    return at <= end && end - at < 8 && !take(r, (int)(r->end - r->at));
}

/* Write which rows have a change, if that pays, and return what is in them. */
INLINE const u64 *write_rows(Writer *w, Block *t, size_t m, int v3)
{
    size_t n = t->count, rows = 0, alive = 0;
    int pays = 0;
    if (t->row > 16 && t->row <= n && t->before < t->row) {
        rows = (t->before + n + t->row - 1) / t->row;
        memset(t->higher, 0, 8 * words(rows));
        size_t end = 0; /* of the row that was found last */
        for (size_t g = 0; g < words(n); g++)
            for (u64 left = t->changed[g]; left;) {
                size_t i = 64 * g + (size_t)__builtin_ctzll(left);
                if (i >= end) {
                    size_t row = (i + t->before) / t->row;
                    t->higher[row >> 6] |= (u64)1 << (row & 63);
                    end = (row + 1) * t->row - t->before;
                    alive++;
                }
                left &= end - 64 * g < 64 ? ~low_bits((int)(end - 64 * g)) : 0;
            }
        float live = (float)alive * (float)t->row;
        pays = live < (float)n && weigh((float)m, (float)n) > weigh((float)m, live) + weigh((float)alive, (float)rows) + ROWS_BITS;
    }
    put(w, (u64)pays, 1);
    if (!pays)
        return NULL;
    put_number(w, (u32)t->row);
    put_number(w, (u32)t->before);
    write_set(w, next_set(t, NULL, NULL, rows), t->higher, v3);
    spread_rows(t, t->higher);
    return t->live;
}

INLINE u32 size_of(u32 delta, int width, u64 *negative) /* without its sign */
{
    int above = 32 - 8 * width;
    int32_t value = (int32_t)(delta << above) >> above;
    u32 sign = (u32)(value >> 31); /* a branch would be guessed wrong half of the time */
    *negative = sign & 1;
    return ((u32)value ^ sign) - sign;
}

INLINE size_t encode_block(const u8 *base, const u8 *new, u8 *out, size_t room, Block *t, int width, int exponent, int v3)
{
    Writer w = {out + HEAD, out + room, 0, 0, 0};
    memset(out, 0, HEAD);
    out[0] = (u8)(0x80 | exponent << 2 | (width >> 1));
    size_t m = compare(base, new, t, width, exponent, v3);
    if (!m)
        return HEAD;
    const u64 *live = write_rows(&w, t, m, v3);
    write_set(&w, next_set(t, exponent ? t->contexts : NULL, live, t->count), t->changed, v3);
    const u32 *deltas = t->deltas;
    u8 *levels = t->levels;
    u32 all = 0;
    for (size_t g = 0; g < words(m); g++) {
        u64 signs = 0;
        for (size_t c = 64 * g; c < m && c < 64 * g + 64; c++) {
            u64 negative;
            u32 delta = size_of(deltas[c], width, &negative);
            signs |= negative << (c & 63);
            levels[c] = (u8)bits_of(delta);
            all |= delta;
        }
        t->negative[g] = signs;
    }
    int highest = bits_of(all);
    out[5] = (u8)highest;
    const u8 *found = exponent ? t->found : NULL;
    write_set(&w, next_set(t, NULL, NULL, m), t->negative, v3);
    all_bits(t->left, m);
    const u64 *among = NULL;
    for (int level = 1; level < highest && !w.full; level++) {
        for (size_t g = 0; g < words(m); g++)
            t->higher[g] = t->left[g] & ~at_most(levels + 64 * g, (u8)level, v3);
        write_set(&w, next_set(t, found, among, m), t->higher, v3);
        if (!among && count_bits(t->higher, m) == m)
            continue;
        u64 *swap = t->left;
        t->left = t->higher, t->higher = swap;
        among = t->left;
    }
    for (size_t c = 0; highest > 1 && c < m; c++)
        if (levels[c] > 1) {
            u64 negative;
            u32 delta = size_of(deltas[c], width, &negative);
            put(&w, delta & low_bits(levels[c] - 1), levels[c] - 1);
        }
    put(&w, 0, -w.count & 7);
    return w.full || w.at > w.end ? 0 : (size_t)(w.at - out);
}

/* One function for each width, so that it is a constant in all loops, and for each kind of processor. */
#define DECODE(NAME, ATTRIBUTE, V3) \
    ATTRIBUTE static int NAME(const u8 *base, Reader *r, u8 *out, Block *t, int levels, int width, int exponent) \
    { \
        return width == 4 ? decode_block(base, r, out, t, levels, 4, exponent, V3) \
             : width == 2 ? decode_block(base, r, out, t, levels, 2, exponent, V3) \
                          : decode_block(base, r, out, t, levels, 1, exponent, V3); \
    }
#define ENCODE(NAME, ATTRIBUTE, V3) \
    ATTRIBUTE static size_t NAME(const u8 *base, const u8 *new, u8 *out, size_t room, Block *t, int width, int exponent) \
    { \
        return width == 4 ? encode_block(base, new, out, room, t, 4, exponent, V3) \
             : width == 2 ? encode_block(base, new, out, room, t, 2, exponent, V3) \
                          : encode_block(base, new, out, room, t, 1, exponent, V3); \
    }
DECODE(decode_plain, , 0)
DECODE(decode_v3, AT_V3, 1)
ENCODE(encode_plain, , 0)
ENCODE(encode_v3, AT_V3, 1)

/* -- the module ---------------------------------------------------------------------------------------------------- */

static PyObject *done(Py_buffer *buffers, int count, PyObject *made)
{
    for (int k = 0; k < count; k++)
        PyBuffer_Release(&buffers[k]);
    return made;
}

static PyObject *refuse(Py_buffer *buffers, int count, const char *why)
{
    PyErr_SetString(PyExc_ValueError, why);
    return done(buffers, count, NULL);
}

static int is_layout(int width, int exponent)
{
    return (width == 1 || width == 2 || width == 4) && exponent >= 0 && exponent <= 8 && exponent < 8 * width;
}

static const char BAD_SIZES[] = "sizes of the buffers do not fit each other, or a block has more than 128 MiB";

static PyObject *py_encode(PyObject *module, PyObject *args)
{
    Py_buffer b[4];
    int width, exponent;
    Py_ssize_t row, before;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*y*w*w*iinn", &b[0], &b[1], &b[2], &b[3], &width, &exponent, &row, &before))
        return NULL;
    if (!is_layout(width, exponent) || row < 0 || before < 0)
        return refuse(b, 4, "width must be 1, 2 or 4, exponent at most 8 bits of it, row and before at least 0");
    size_t size = (size_t)b[0].len, room = (size_t)b[2].len;
    if (size > MAX_SIZE || size % (size_t)width || (size_t)b[1].len != size || room < HEAD + 8 ||
        (size_t)b[3].len < work_size(size))
        return refuse(b, 4, BAD_SIZES);
    size_t made;
    Py_BEGIN_ALLOW_THREADS
    Block block = {0};
    int v3 = has_v3();
    open_block(&block, b[3].buf, size, width);
    block.row = (size_t)row, block.before = (size_t)before;
    made = (v3 ? encode_v3 : encode_plain)(b[0].buf, b[1].buf, b[2].buf, room - 8, &block, width, exponent);
    Py_END_ALLOW_THREADS
    return done(b, 4, PyLong_FromSize_t(made));
}

static PyObject *py_decode(PyObject *module, PyObject *args)
{
    Py_buffer b[4];
    (void)module;
    if (!PyArg_ParseTuple(args, "y*y*w*w*", &b[0], &b[1], &b[2], &b[3]))
        return NULL;
    size_t size = (size_t)b[0].len, stored = (size_t)b[1].len;
    if (size > MAX_SIZE || (size_t)b[2].len != size || (size_t)b[3].len < work_size(size))
        return refuse(b, 4, BAD_SIZES);
    int good = 0;
    Py_BEGIN_ALLOW_THREADS
    u8 head[HEAD] = {0};
    if (stored >= HEAD && stored <= size + HEAD)
        memcpy(head, b[1].buf, HEAD);
    int width = 1 << (head[0] & 3), exponent = head[0] >> 2 & 15, levels = head[5];
    if (head[0] >> 6 == 2 && is_layout(width, exponent) && size % (size_t)width == 0 && levels <= 8 * width) {
        Block block = {0};
        int v3 = has_v3();
        open_block(&block, b[3].buf, size, width);
        memcpy(block.payload, (const u8 *)b[1].buf + HEAD, stored - HEAD);
        memset(block.payload + stored - HEAD, 0, 64);
        Reader reader = {block.payload, 0, 8 * (u64)(stored - HEAD)};
        good = (v3 ? decode_v3 : decode_plain)(b[0].buf, &reader, b[2].buf, &block, levels, width, exponent);
    }
    Py_END_ALLOW_THREADS
    return done(b, 4, PyBool_FromLong(good));
}

static PyObject *py_work_size(PyObject *module, PyObject *size)
{
    size_t value = PyLong_AsSize_t(size);
    (void)module;
    return value == (size_t)-1 && PyErr_Occurred() ? NULL : PyLong_FromSize_t(work_size(value));
}

static PyMethodDef methods[] = {
    {"encode", py_encode, METH_VARARGS, "encode(base, new, out, work, width, exponent, row, before) -> int"},
    {"decode", py_decode, METH_VARARGS, "decode(base, payload, out, work) -> bool"},
    {"work_size", py_work_size, METH_O, "work_size(size) -> int"},
    {NULL, NULL, 0, NULL},
};

/* Of the functions above, what they take and what they return; differences.py expects the same number. */
#define VERSION 1

static int add_version(PyObject *module) { return PyModule_AddIntConstant(module, "VERSION", VERSION); }

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, add_version},
#ifdef Py_GIL_DISABLED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_differences", "Differences between blocks in C.", 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__differences(void) { return PyModuleDef_Init(&definition); }
