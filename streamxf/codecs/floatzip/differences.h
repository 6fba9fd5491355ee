/* Differences between blocks, a part of _kernel.c, which states what holds for it. docs/format/differences.md is the
 * norm, and differences.py the reference for decoding.
 *
 * Everything is a set of elements here, or is made of sets: a bitmap, which is stored in gaps. The elements of a set are
 * told apart by bands of their contexts. A mask says which of 64 elements a band has; PEXT gathers the bits of the
 * members of a band, and PDEP scatters them again. Processors without a fast PEXT do the same bit by bit.
 */

#define INLINE static inline __attribute__((always_inline))

enum {
    DIFFERENCE_HEAD = 6, /* bytes: layout, CRC, levels */
    MAX_BANDS = 6,       /* more would gain one percent */
    BAND_COST = 30,      /* bits that a band takes for itself, and rows */
    ROWS_COST = 40,
    LEAST = 256,         /* elements of a set in bands */
    COUNTED = 1 << 12,   /* elements that are counted to find them */
};
static const u64 ONES = 0x0101010101010101u;
static const u64 NEVER = (u64)1 << 62; /* a gap beyond all elements */

typedef struct {
    int banded;                /* whether contexts are used */
    size_t count, row, before; /* elements */
    u8 *payload;               /* with zeros behind it */
    u8 *contexts, *found;      /* of the elements, and of those that changed, up to a certain level */
    u8 *levels, *left;         /* of those that changed, up to a certain level */
    u32 *places, *gaps;
    u64 *members, *rows, *bands, *higher;
} Difference;

static inline size_t words(size_t bits) { return (bits + 63) / 64; }
static inline int bits_of(u32 value) { return value ? top_bit(value) + 1 : 0; }
INLINE u64 low_bits(size_t count) { return count < 64 ? ((u64)1 << count) - 1 : ~(u64)0; }

static size_t difference_work_size(size_t size) { return 17 * size + 16384; }

static void open_difference(Difference *d, u8 *work, size_t size, size_t count)
{
    size_t bytes = 64 * words(count) + 128, bits = 8 * words(count) + 64;
    d->count = count;
    work += -(uintptr_t)work & 63;
    d->payload = work, work += (size + 191) & ~(size_t)63;
    u8 **of_bytes[] = {&d->contexts, &d->found, &d->levels, &d->left};
    for (int i = 0; i < 4; i++, work += bytes)
        *of_bytes[i] = work;
    d->places = (u32 *)(void *)work, work += 4 * bytes;
    d->gaps = (u32 *)(void *)work, work += 4 * bytes;
    d->members = (u64 *)(void *)work, work += bits;
    d->rows = (u64 *)(void *)work, work += bits;
    d->bands = (u64 *)(void *)work, work += MAX_BANDS * bits;
    d->higher = (u64 *)(void *)work;
}

/* -- what differs between processors */

#if PATHS
#define HAS_PEXT() (HAS_V3() && !__builtin_cpu_is("znver1") && !__builtin_cpu_is("znver2"))
AT_V3 static inline u64 pext(u64 value, u64 mask) { return __builtin_ia32_pext_di(value, mask); }
AT_V3 static inline u64 pdep(u64 value, u64 mask) { return __builtin_ia32_pdep_di(value, mask); }
AT_V3 static inline u64 at_most_v3(const u8 *bytes, u8 limit)
{
    Bytes32 a, b;
    memcpy(&a, bytes, 32);
    memcpy(&b, bytes + 32, 32);
    u32 low = (u32)__builtin_ia32_pmovmskb256((Chars32)(a <= limit));
    return low | (u64)(u32)__builtin_ia32_pmovmskb256((Chars32)(b <= limit)) << 32;
}
#else
#define HAS_PEXT() 0
#define pext(value, mask) 0
#define pdep(value, mask) 0
#define at_most_v3(bytes, limit) 0
#endif

/* The bits of a value that a mask names, side by side; and back to their places. */
INLINE u64 gathered(u64 value, u64 mask, int v3)
{
    if (v3 || mask == ~(u64)0)
        return v3 ? pext(value, mask) : value;
    u64 made = 0;
    for (u64 left = value & mask; left; left &= left - 1)
        made |= (u64)1 << __builtin_popcountll(mask & ((left & -left) - 1));
    return made;
}
INLINE u64 scattered(u64 value, u64 mask, int v3)
{
    if (v3 || mask == ~(u64)0)
        return v3 ? pdep(value, mask) : value;
    u64 made = 0;
    for (; value; mask &= mask - 1, value >>= 1)
        made |= mask & -mask & -(value & 1);
    return made;
}
/* Which of 64 bytes are at most this. */
INLINE u64 at_most(const u8 *bytes, u8 limit, int v3)
{
    if (v3)
        return at_most_v3(bytes, limit);
    const u64 high = 128 * ONES, all = limit * ONES;
    u64 made = 0;
    for (int i = 0; i < 8; i++) {
        u64 x = rd64(bytes + 8 * i), low = (all | high) - (x & ~high);
        made |= (((~x & all) | (~(x ^ all) & low)) & high) / 128 * 0x0102040810204080u >> 56 << 8 * i;
    }
    return made;
}

/* The bytes of those of 64 elements that are members, side by side; and back, each raised by one, with 0 in between. */
INLINE u8 *gather_bytes(u8 *to, const u8 *from, u64 members, int v3)
{
    for (int i = 0; i < 64; i += 8) {
        u64 some = members >> i & 255;
        if (v3) {
            wr64(to, pext(rd64(from + i), pdep(some, ONES) * 255));
            to += __builtin_popcountll(some);
        } else
            for (int k = 0; k < 8; to += some >> k++ & 1)
                *to = from[i + k];
    }
    return to;
}
INLINE const u8 *scatter_bytes(u8 *to, const u8 *from, u64 members, int v3)
{
    for (int i = 0; i < 64; i += 8) {
        u64 some = members >> i & 255;
        if (v3) {
            u64 ones = pdep(some, ONES);
            wr64(to + i, pdep(rd64(from), ones * 255) + ones);
            from += __builtin_popcountll(some);
        } else
            for (int k = 0; k < 8; from += some >> k++ & 1)
                to[i + k] = (u8)((*from + 1) * (int)(some >> k & 1));
    }
    return from;
}

/* -- bits */

typedef struct {
    u8 *at, *end; /* behind which there is room for 8 bytes; once `at` is beyond it, nothing more is written */
    u64 bits;
    int count;
} BitsOut;

typedef struct {
    const u8 *in; /* what lies beyond the end is 0, and found out later: `at` is then beyond it */
    u64 at, end;
} BitsIn;

INLINE void put_bits(BitsOut *w, u64 value, int count) /* up to 56 */
{
    if (w->at > w->end)
        return;
    w->bits |= value << w->count;
    w->count += count;
    wr64(w->at, w->bits);
    w->at += w->count >> 3;
    w->bits >>= w->count & ~7;
    w->count &= 7;
}

INLINE void put_number(BitsOut *w, u32 value)
{
    put_bits(w, (u64)bits_of(value) | (u64)value << 5, 5 + bits_of(value));
}

INLINE void put_gap(BitsOut *w, u32 gap, int k)
{
    u32 zeros = gap >> k;
    for (; zeros > 24; zeros -= 24)
        put_bits(w, 0, 24);
    put_bits(w, (u64)1 << zeros | (gap & low_bits((size_t)k)) << 1 << zeros, (int)zeros + 1 + k);
}

INLINE u64 fetch_bits(const u8 *in, u64 at) /* 64 of them */
{
    return rd64(in + (at >> 3)) >> (at & 7) | (u64)in[(at >> 3) + 8] << 1 << (63 - (at & 7));
}

INLINE u64 peek_bits(const BitsIn *r) /* 57 bits or more */
{
    u64 at = r->at < r->end ? r->at : r->end;
    return rd64(r->in + (at >> 3)) >> (at & 7);
}

static u32 take(BitsIn *r, int count)
{
    u32 value = (u32)(peek_bits(r) & low_bits((size_t)count));
    r->at += (u64)count;
    return value;
}

static u32 take_number(BitsIn *r) { return take(r, (int)take(r, 5)); }

INLINE u64 read_gap(BitsIn *r, int k)
{
    u64 zeros = 0, next;
    for (; !(next = rd64(r->in + (r->at >> 3)) >> (r->at & 7)); zeros += 57)
        if ((r->at += 57) >= r->end)
            return r->at = r->end + 1, NEVER;
    int more = __builtin_ctzll(next), used = more + 1;
    r->at += (u64)used;
    next = used + k > 57 ? rd64(r->in + (r->at >> 3)) >> (r->at & 7) : next >> more >> 1;
    r->at += (u64)k;
    return r->at > r->end ? NEVER : ((zeros + (u64)more) << k) + (next & low_bits((size_t)k));
}

/* -- sets */

INLINE u64 *band_of(const Difference *d, size_t n, int b) { return d->bands + (size_t)b * (words(n) + 2); }

static size_t count_bits(const u64 *bitmap, size_t count)
{
    size_t held = 0;
    for (size_t g = 0; g < words(count); g++)
        held += (size_t)__builtin_popcountll(bitmap[g]);
    return held;
}

/* Where the bits of a bitmap are that differ from `fill`; `places` has room for four more. */
INLINE size_t list_places(const u64 *bitmap, size_t count, u64 fill, u32 *RESTRICT places)
{
    size_t held = 0;
    for (size_t g = 0; g < words(count); g++) {
        u64 left = (bitmap[g] ^ fill) & low_bits(count - 64 * g);
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

/* Bits that m of n elements take, about; and the k with which they do. */
static u64 cost_of(u64 m, u64 n, int *k)
{
    m = m > n - m ? n - m : m;
    u64 best = m ? n : 0, cost;
    *k = 0;
    for (int next = 1; m && (cost = m * (u64)next + m / 2 + ((n - m) >> next)) < best; next++)
        best = cost, *k = next;
    return best;
}

/* Cut the contexts into bands, beginning with one for each, by joining the two that gain least by being apart. Returns
 * how many there are. */
static int cut_bands(const u8 *contexts, size_t n, const u64 *members, u8 *cuts)
{
    size_t held = count_bits(members, n), step[2] = {n / COUNTED + 1, held / COUNTED + 1};
    u32 counts[2][256] = {{0}};
    u64 of[256], in[256], weight[256], both[256];
    int bands = 0, k;
    memset(cuts, 255, MAX_BANDS);
    if (!contexts || n < LEAST || !held || held == n)
        return 1;
    for (int which = 0; which < 2; which++)
        for (size_t g = 0; g < words(n); g += step[which])
            for (u64 left = which ? members[g] : low_bits(n - 64 * g); left; left &= left - 1)
                counts[which][contexts[64 * g + (size_t)__builtin_ctzll(left)]]++;
    u8 ends[256];
    for (int c = 0; c < 256; c++) {
        if (!counts[0][c] && !counts[1][c])
            continue;
        in[bands] = counts[1][c] * step[1];
        of[bands] = counts[0][c] * step[0];
        of[bands] = of[bands] > in[bands] ? of[bands] : in[bands];
        weight[bands] = cost_of(in[bands], of[bands], &k);
        ends[bands++] = (u8)c;
    }
    for (int b = 0; b + 1 < bands; b++)
        both[b] = cost_of(in[b] + in[b + 1], of[b] + of[b + 1], &k);
    while (bands > 1) {
        int best = 0;
        u64 least = NEVER;
        for (int b = 0; b + 1 < bands; b++)
            if (NEVER / 2 + both[b] - weight[b] - weight[b + 1] < least)
                best = b, least = NEVER / 2 + both[b] - weight[b] - weight[b + 1];
        if (bands <= MAX_BANDS && least > NEVER / 2 + BAND_COST)
            break;
        in[best] += in[best + 1], of[best] += of[best + 1];
        weight[best] = both[best], ends[best] = ends[best + 1];
        bands--;
        for (int b = best + 1; b < bands; b++)
            in[b] = in[b + 1], of[b] = of[b + 1], weight[b] = weight[b + 1], ends[b] = ends[b + 1], both[b] = both[b + 1];
        for (int b = best ? best - 1 : 0; b <= best && b + 1 < bands; b++)
            both[b] = cost_of(in[b] + in[b + 1], of[b] + of[b + 1], &k);
    }
    memcpy(cuts, ends, (size_t)bands - 1);
    return bands;
}

/* The mask of a band, of 64 elements; those that no band before has are below its cut. */
INLINE u64 mask_of(const u8 *contexts, u8 cut, int last, u64 all, u64 *before, int v3)
{
    u64 below = last ? all : at_most(contexts, cut, v3) & all, mask = below & ~*before;
    *before = below;
    return mask;
}

/* A bitmap of each band, of the members among its own elements; and back. There are always as many bands, of which the
 * last may be empty. */
INLINE void split_bands(Difference *d, const u8 *contexts, size_t n, const u64 *members, const u8 *limits, u64 *sizes, int v3)
{
    u64 kept[MAX_BANDS] = {0};
    int have[MAX_BANDS] = {0};
    u8 *to[MAX_BANDS], cuts[MAX_BANDS];
    memcpy(cuts, limits, sizeof cuts);
    for (int b = 0; b < MAX_BANDS; b++)
        to[b] = (u8 *)band_of(d, n, b);
    for (size_t g = 0; g < words(n); g++) {
        u64 all = low_bits(n - 64 * g), before = 0;
        for (int b = 0; b < MAX_BANDS; b++) {
            u64 mask = mask_of(contexts + 64 * g, cuts[b], b + 1 == MAX_BANDS, all, &before, v3);
            u64 bits = gathered(members[g], mask, v3), word = kept[b] | bits << have[b];
            int now = have[b] + __builtin_popcountll(mask);
            wr64(to[b], word);
            to[b] += now >> 6 << 3;
            kept[b] = now >> 6 ? bits >> 1 >> (63 - have[b]) : word;
            have[b] = now & 63;
        }
    }
    for (int b = 0; b < MAX_BANDS; b++) {
        wr64(to[b], kept[b]);
        sizes[b] = 8 * (u64)(to[b] - (u8 *)band_of(d, n, b)) + (u64)have[b];
    }
}
INLINE void merge_bands(Difference *d, const u8 *contexts, size_t n, u64 *members, const u8 *limits, const u64 *fill, u64 *sizes, int v3)
{
    u64 at[MAX_BANDS] = {0};
    const u8 *bits[MAX_BANDS];
    u8 cuts[MAX_BANDS];
    memcpy(cuts, limits, sizeof cuts);
    for (int b = 0; b < MAX_BANDS; b++)
        bits[b] = (u8 *)band_of(d, n, b);
    for (size_t g = 0; g < words(n); g++) {
        u64 all = low_bits(n - 64 * g), before = 0, found = 0;
        for (int b = 0; b < MAX_BANDS; b++) {
            u64 mask = mask_of(contexts + 64 * g, cuts[b], b + 1 == MAX_BANDS, all, &before, v3);
            found |= scattered(fetch_bits(bits[b], at[b]) ^ fill[b], mask, v3);
            at[b] += (u64)__builtin_popcountll(mask);
        }
        members[g] = found;
    }
    memcpy(sizes, at, sizeof at);
}

/* Write which of n elements are members. */
INLINE void write_any_set(BitsOut *to, Difference *d, const u8 *contexts, size_t n, const u64 *members, int v3)
{
    u8 cuts[MAX_BANDS];
    u64 sizes[MAX_BANDS] = {n};
    BitsOut w = *to;
    u32 *places = d->gaps;
    int bands = cut_bands(contexts, n, members, cuts), k;
    if (bands > 1)
        split_bands(d, contexts, n, members, cuts, sizes, v3);
    for (int b = 0; b < bands; b++) {
        const u64 *bits = bands > 1 ? band_of(d, n, b) : members;
        size_t size = sizes[b], held = count_bits(bits, size);
        u64 fill = -(u64)(held > size - held);
        held = fill ? size - held : held;
        cost_of(held, size, &k);
        put_bits(&w, b + 1 < bands ? 1 | (u64)cuts[b] << 1 : 0, b + 1 < bands ? 9 : 1);
        put_bits(&w, fill & 1, 1);
        put_number(&w, (u32)held);
        if (held)
            put_bits(&w, (u64)k, 5);
        if (held && !k) { /* the bitmap as it is, up to what is listed last */
            for (; !((bits[(size - 1) >> 6] ^ fill) >> ((size - 1) & 63) & 1); size--)
                ;
            for (size_t i = 0; i < size; i += 32)
                put_bits(&w, ((bits[i >> 6] ^ fill) >> (i & 63)) & low_bits(size - i < 32 ? size - i : 32), size - i < 32 ? (int)(size - i) : 32);
            continue;
        }
        list_places(bits, size, fill, places);
        u32 next = 0;
        for (size_t i = 0; i < held; i++) {
            put_gap(&w, places[i] - next, k);
            next = places[i] + 1;
        }
    }
    *to = w;
}

/* Read which of n elements are members; 0 if the set is damaged. */
INLINE int read_any_set(BitsIn *from, Difference *d, const u8 *contexts, size_t n, u64 *members, int v3)
{
    u8 cuts[MAX_BANDS];
    u64 fill[MAX_BANDS] = {0}, sizes[MAX_BANDS] = {n}, ends[MAX_BANDS] = {0};
    int bands = 0;
    BitsIn r = *from;
    memset(cuts, 255, sizeof cuts);
    for (int more = 1, low = 0; more; bands++) {
        more = (int)take(&r, 1);
        int cut = more ? (int)take(&r, 8) : 255;
        if (cut < low || (more && (cut == 255 || bands + 1 == MAX_BANDS || !contexts)))
            return 0;
        low = cut + 1;
        cuts[bands] = (u8)cut;
        fill[bands] = -(u64)take(&r, 1);
        u64 *bits = bands || more ? band_of(d, n, bands) : members, place = 0;
        memset(bits, 0, 8 * words(n) + 16);
        u32 held = take_number(&r);
        int k = held ? (int)take(&r, 5) : 0;
        while (held && !k) { /* a bitmap */
            u64 word = fetch_bits(r.in, r.at), over = word;
            if (place >= n || r.at > r.end)
                return 0;
            int used = 64, ones = __builtin_popcountll(word);
            if ((u32)ones >= held) {
                for (u32 i = 0; i < held; i++)
                    over &= over - 1;
                word ^= over, used = 64 - __builtin_clzll(word), ones = (int)held;
            }
            bits[place >> 6] = word;
            place += (u64)used, r.at += (u64)used, held -= (u32)ones;
        }
        for (; held; held--, place++) {
            place += read_gap(&r, k);
            if (place >= n)
                return 0;
            bits[place >> 6] |= (u64)1 << (place & 63);
        }
        ends[bands] = place;
    }
    *from = r;
    if (bands > 1) {
        for (int b = bands; b < MAX_BANDS; b++)
            memset(band_of(d, n, b), 0, 16);
        merge_bands(d, contexts, n, members, cuts, fill, sizes, v3);
    } else
        for (size_t g = 0; g < words(n); g++)
            members[g] ^= fill[0] & low_bits(n - 64 * g);
    for (int b = 0; b < bands; b++)
        if (ends[b] > sizes[b])
            return 0;
    return 1;
}

static int read_plain(BitsIn *r, Difference *d, const u8 *contexts, size_t n, u64 *members)
{
    return read_any_set(r, d, contexts, n, members, 0);
}
AT_V3 static int read_v3(BitsIn *r, Difference *d, const u8 *contexts, size_t n, u64 *members)
{
    return read_any_set(r, d, contexts, n, members, 1);
}
static void write_plain(BitsOut *w, Difference *d, const u8 *contexts, size_t n, const u64 *members)
{
    write_any_set(w, d, contexts, n, members, 0);
}
AT_V3 static void write_v3(BitsOut *w, Difference *d, const u8 *contexts, size_t n, const u64 *members)
{
    write_any_set(w, d, contexts, n, members, 1);
}

/* -- rows */

static size_t count_rows(const Difference *d) { return (d->before + d->count + d->row - 1) / d->row; }

/* Leave out the contexts of rows that nothing changed in, and find the members among what is left; or, `back`, find
 * the places of the m members. Returns how many elements are left. */
static size_t squeeze_rows(Difference *d, size_t m, int back)
{
    size_t to = 0, c = 0;
    for (size_t g = 0; g < words(count_rows(d)); g++)
        for (u64 left = d->rows[g]; left; left &= left - 1) {
            size_t begin = (64 * g + (size_t)__builtin_ctzll(left)) * d->row, end = begin + d->row - d->before;
            begin = begin > d->before ? begin - d->before : 0;
            end = end < d->count ? end : d->count;
            size_t shift = begin - to, size = end - begin;
            if (d->banded && !back)
                memmove(d->contexts + to, d->contexts + begin, size);
            for (; back && c < m && d->places[c] < to + size; c++)
                d->places[c] += (u32)shift;
            for (; !back && c < m && d->places[c] < end; c++)
                d->members[(d->places[c] - shift) >> 6] |= (u64)1 << ((d->places[c] - shift) & 63);
            to += size;
        }
    return to;
}

/* Find the rows in which something changed, and whether it pays to tell them. */
static int find_rows(Difference *d, size_t m)
{
    if (d->row <= 16 || d->row > d->count || d->before >= d->row)
        return 0;
    size_t end = 0, alive = 0;
    int k;
    memset(d->rows, 0, 8 * words(count_rows(d)));
    for (size_t c = 0; c < m; c++)
        if (d->places[c] >= end) {
            size_t row = (d->places[c] + d->before) / d->row;
            d->rows[row >> 6] |= (u64)1 << (row & 63);
            end = (row + 1) * d->row - d->before;
            alive++;
        }
    u64 live = alive * d->row < d->count ? alive * d->row : d->count;
    return cost_of(m, d->count, &k) > cost_of(m, live, &k) + cost_of(alive, count_rows(d), &k) + ROWS_COST;
}

/* -- blocks */

INLINE u32 element(const u8 *block, size_t i, int width)
{
    return width == 4 ? rd32(block + 4 * i) : width == 2 ? rd16(block + 2 * i) : block[i];
}

/* The 8 bits beneath the sign: of a float, its exponent or more. */
INLINE u8 context(u32 element, int width) { return (u8)(width == 1 ? element << 1 : element >> (8 * width - 9)); }

INLINE void find_contexts(const u8 *RESTRICT base, u8 *RESTRICT contexts, size_t n, int width)
{
    for (size_t i = 0; i < n; i++)
        contexts[i] = context(element(base, i, width), width);
}

/* Which elements changed; and the contexts of all. */
INLINE void compare(const u8 *base, const u8 *new, Difference *d, int v3, int width)
{
    for (size_t g = 0; g < words(d->count); g++) {
        size_t at = 64 * g * (size_t)width, n = d->count - 64 * g;
        const u8 *a = base + at, *b = new + at;
        u8 same[64], last[2][256];
        if (n < 64) {
            memset(last, 0, sizeof last);
            a = memcpy(last[0], a, n * (size_t)width);
            b = memcpy(last[1], b, n * (size_t)width);
        }
        for (size_t i = 0; i < 64; i++)
            same[i] = element(a, i, width) == element(b, i, width);
        d->members[g] = at_most(same, 0, v3);
        if (d->banded)
            find_contexts(a, d->contexts + 64 * g, 64, width);
    }
}

/* Of the m elements that changed the contexts, the levels, and the rest of the changes in place of the places. Returns
 * the highest level. */
INLINE int find_levels(const u8 *base, const u8 *new, Difference *d, size_t m, int width)
{
    u32 all = 0;
    for (size_t c = 0; c < m; c++) {
        u32 old = element(base, d->places[c], width), change = element(new, d->places[c], width) - old;
        change <<= 32 - 8 * width;
        u32 sign = -(change >> 31), size = ((change ^ sign) - sign) >> (32 - 8 * width);
        int level = top_bit(size | 1);
        all |= size;
        d->found[c] = context(old, width);
        d->levels[c] = d->left[c] = (u8)level;
        d->places[c] = (size ^ 1u << level) << 1 | (sign & 1);
    }
    return top_bit(all | 1);
}

INLINE void change(u8 *out, BitsIn *from, const Difference *d, size_t m, int common, int width)
{
    BitsIn r = *from;
    for (size_t c = 0; c < m; c++) {
        int level = common + d->levels[c];
        u8 *at = out + (size_t)width * d->places[c];
        u32 rest = (u32)(peek_bits(&r) & low_bits((size_t)level + 1)), sign = -(rest & 1), size = rest >> 1 | 1u << level;
        u32 made = element(at, 0, width) + ((size ^ sign) - sign);
        r.at += (u64)level + 1;
        if (width == 4)
            wr32(at, made);
        else if (width == 2)
            wr16(at, (u16)made);
        else
            *at = (u8)made;
    }
    *from = r;
}

/* A loop for each width, in which it is a constant. */
#define BY_WIDTH(call, ...) \
    (width == 4 ? call(__VA_ARGS__, 4) : width == 2 ? call(__VA_ARGS__, 2) : call(__VA_ARGS__, 1))

INLINE size_t encode_any(const u8 *base, const u8 *new, u8 *out, size_t room, Difference *d, int width, int v3)
{
    BitsOut w = {out + DIFFERENCE_HEAD, out + room, 0, 0};
    void (*write_set)(BitsOut *, Difference *, const u8 *, size_t, const u64 *) = v3 ? write_v3 : write_plain;
    size_t n = d->count;
    memset(out, 0, DIFFERENCE_HEAD);
    out[0] = (u8)(0x80 | d->banded << 2 | (width >> 1));
    BY_WIDTH(compare, base, new, d, v3);
    size_t m = list_places(d->members, n, 0, d->places);
    if (!m)
        return DIFFERENCE_HEAD;
    int rows = find_rows(d, m);
    put_bits(&w, (u64)rows, 1);
    if (rows) {
        put_number(&w, (u32)d->row);
        put_number(&w, (u32)d->before);
        write_set(&w, d, NULL, count_rows(d), d->rows);
        memset(d->members, 0, 8 * words(n));
        n = squeeze_rows(d, m, 0);
    }
    write_set(&w, d, d->banded ? d->contexts : NULL, n, d->members);
    int highest = BY_WIDTH(find_levels, base, new, d, m);
    out[5] = (u8)(highest + 1);
    n = m;
    for (int level = 0; level < highest; level++) {
        u64 *higher = d->members;
        for (size_t g = 0; g < words(n); g++)
            higher[g] = ~at_most(d->left + 64 * g, (u8)level, v3) & low_bits(n - 64 * g);
        write_set(&w, d, d->banded ? d->found : NULL, n, higher);
        if (count_bits(higher, n) == n)
            continue;
        u8 *found = d->found, *left = d->left;
        for (size_t g = 0; g < words(n); g++) {
            found = gather_bytes(found, d->found + 64 * g, higher[g], v3);
            left = gather_bytes(left, d->left + 64 * g, higher[g], v3);
        }
        n = (size_t)(left - d->left);
    }
    for (size_t c = 0; c < m; c++)
        put_bits(&w, d->places[c], d->levels[c] + 1);
    put_bits(&w, 0, -w.count & 7);
    return w.at > w.end ? 0 : (size_t)(w.at - out);
}

INLINE int decode_any(const u8 *base, BitsIn *r, u8 *out, Difference *d, int levels, int width, int v3)
{
    int (*read_set)(BitsIn *, Difference *, const u8 *, size_t, u64 *) = v3 ? read_v3 : read_plain;
    size_t n = d->count;
    memcpy(out, base, n * (size_t)width);
    if (!levels)
        return r->end == 0;
    if (d->banded)
        BY_WIDTH(find_contexts, base, d->contexts, n);
    int rows = (int)take(r, 1);
    if (rows) {
        d->row = take_number(r);
        d->before = take_number(r);
        if (d->before >= d->row || d->row > n || !read_set(r, d, NULL, count_rows(d), d->rows))
            return 0;
        n = squeeze_rows(d, 0, 0);
    }
    if (!read_set(r, d, d->banded ? d->contexts : NULL, n, d->members))
        return 0;
    size_t m = list_places(d->members, n, 0, d->places);
    if (rows)
        squeeze_rows(d, m, 1);
    for (size_t c = 0; d->banded && c < m; c++)
        d->found[c] = context(element(base, d->places[c], width), width);
    int common = 0, kept = 0;
    size_t counts[32];
    u64 *bitmaps[33] = {d->higher};
    n = m;
    for (int level = 1; level < levels; level++) {
        u64 *higher = bitmaps[kept];
        if (!read_set(r, d, d->banded ? d->found : NULL, n, higher))
            return 0;
        if (n == m && count_bits(higher, n) == n) { /* as in the lower half of all levels, if most bits changed */
            common++;
            continue;
        }
        u8 *found = d->found;
        for (size_t g = 0; d->banded && g < words(n); g++)
            found = gather_bytes(found, d->found + 64 * g, higher[g], v3);
        counts[kept++] = n;
        bitmaps[kept] = higher + words(n);
        n = count_bits(higher, n);
    }
    memset(d->levels, 0, n);
    while (kept--) {
        u8 *to = d->left;
        const u8 *from = d->levels;
        for (size_t g = 0; g < words(counts[kept]); g++)
            from = scatter_bytes(to + 64 * g, from, bitmaps[kept][g], v3);
        d->left = d->levels, d->levels = to;
    }
    BY_WIDTH(change, out, r, d, m, common);
    return r->at <= r->end && r->end - r->at < 8 && !take(r, (int)(r->end - r->at));
}

static size_t encode_plain(const u8 *base, const u8 *new, u8 *out, size_t room, Difference *d, int width)
{
    return encode_any(base, new, out, room, d, width, 0);
}
AT_V3 static size_t encode_v3(const u8 *base, const u8 *new, u8 *out, size_t room, Difference *d, int width)
{
    return encode_any(base, new, out, room, d, width, 1);
}
static int decode_plain(const u8 *base, BitsIn *r, u8 *out, Difference *d, int levels, int width)
{
    return decode_any(base, r, out, d, levels, width, 0);
}
AT_V3 static int decode_v3(const u8 *base, BitsIn *r, u8 *out, Difference *d, int levels, int width)
{
    return decode_any(base, r, out, d, levels, width, 1);
}

static size_t encode_difference(Difference *d, const u8 *base, const u8 *new, size_t size, u8 *out, size_t room, u8 *work, int width)
{
    open_difference(d, work, size, size / (size_t)width);
    return (HAS_PEXT() ? encode_v3 : encode_plain)(base, new, out, room, d, width);
}

static int decode_difference(const u8 *base, const u8 *payload, size_t stored, u8 *out, size_t size, u8 *work)
{
    if (stored < DIFFERENCE_HEAD || stored > size + DIFFERENCE_HEAD)
        return 0;
    u8 head[DIFFERENCE_HEAD];
    memcpy(head, payload, DIFFERENCE_HEAD);
    int width = 1 << (head[0] & 3), levels = head[5];
    if (head[0] >> 3 != 16 || width > 4 || size % (size_t)width || levels > 8 * width)
        return 0;
    Difference d = {.banded = head[0] >> 2 & 1};
    open_difference(&d, work, size, size / (size_t)width);
    memcpy(d.payload, payload + DIFFERENCE_HEAD, stored - DIFFERENCE_HEAD);
    memset(d.payload + stored - DIFFERENCE_HEAD, 0, 64);
    BitsIn r = {d.payload, 0, 8 * (u64)(stored - DIFFERENCE_HEAD)};
    return (HAS_PEXT() ? decode_v3 : decode_plain)(base, &r, out, &d, levels, width);
}
