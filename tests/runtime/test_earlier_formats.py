"""Checkpoints that earlier versions wrote still load: their files, byte for byte, one of each format."""

import base64
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch

from launcher.runtime.checkpoint import Checkpoints
from launcher.runtime.checkpoint_folder import Progress
from launcher.runtime.checkpoint_search import CheckpointBroken, CheckpointUnavailable
from launcher.runtime.tiers.checkpoint_log import CheckpointLog
from launcher.runtime.tiers.checkpoint_manager import CheckpointManager, StoreTier
from launcher.runtime.tiers.stores import Folder

FILES = {
    "plain/latest": ("c-kv2NiEPdfB;hkGvibfOT$FV6a&*FBMS=)WAijK3ln3rL}QawQ%g%rE&w7c3yc"),
    "plain/step-00000005/.metadata": (
        "c-nnbO-~a+7_QK=d=!IH2?wLWh|-vr7FvXhMv$7ODG(qeB<g0`o$ajM?v|ZdzKlj=AR*4hFc=S>xET+I#9!b~@ZiaRV7Phk=sUapLaTe"
        ")nR(`U-uIbj=0)&mGZgSXKFVyTNaC77nPU`OhP8N+;9|LI8y1UKFhd$*Nbv4_{r6BrUy5g9j1N+V7*;i-$kYZ<E`%$#hRygEHcEsE65y"
        "9su|;iX1+-8J|IO4}b?hp3n1QK;5BTt<=A?%l;~}qD!4=)K5u2QVc|PbjK(S*W)7VAKur0y+)DmW@iFRz4NmPFg1x;#L6MJG=9Dq_p&C"
        "lo6%;IwX-l{skFt>O=yYK+;xqydYqQHaH*u|nD9bAz^Ky>DU`yLPPDiYT!Q}IaF9+{Jae|D<ax=t~JHb-)ST%g7fk{aGzgVik{x4?USC"
        "kZljL3(@+5+>)R8)SfY7d#`9Qy@Tw56ER%F}VUf9eW-N8HJ+8YWr?U&D#8U6XPrO`AS9GwOBi;5X50B^`}m>ok+B<5N*;2Et_G_pV=LT"
        "X<L6>9<G|mvaqApqeK)Q@(Kf&YjN5aWRg7OLC+HyWMB~T%ZAY!S=*CD)E8(H1$cj5Eo*6byLlv?`i2D?WruQp0jj<E-%FtzCZ;=-;fmm"
        "4wbn}3((NW^zk^Lk;wDzBh!F`>6KcXEELNcxKLrpo-eqE|1d#k`kav3`)UAlQ0sZLeyYJ%tP%1GpoEcX>fRCh9^Y{r-NI4fEv^7MqZq?"
        "Q|h(jn45|)p45qEANvflgk>8D^v<mAWftIWygvt*M^vc2|HLwyaZ(;F-6$9K@lm!FR>CbDm}vs9TnRkSV7-3tw#<MMGpga?0(etVOC{r"
        "uWT0Jj{Qd`@Iq`dWh0;%@UWR6~R3K$>hC1;KlkY-(&TNzV@fcy3(qPF4ZOJGLD7wM{^WAY=wS5kv7Rg4YF^F*wR<Ea87?!Q_opD1yV2<"
        "kx2=CK6gYH4{sx(o?ZivN#hf+@6?@>B(trGL@W3Ye`U6;38^r!va?zu`Wae9t6mevWXq)y-A^DJP}X8T>LjrcpgO"
    ),
    "plain/step-00000005/__0_0.distcp": (
        "c-rljPiWg#9LJv|M|QQ5v>RJ#p<(SQDVy{3UutN*n&FEIb5b@;F2<GBR7AD%WF_4Sg+NG3DTTsz=pQI$haJZ5gC0h1J(iX>^w5q$4kf$"
        "nG}v+PS&jQ7V=I3QNk?QqKUsRe-}~zQe((2D+2S$)<Z__nI0!xhwZOjQ&O2lET3E}^&UmHbAef3B3#?tW{kmf}1*bty1OzJBBbae!L&Q"
        "{geCpLgw;>{S8F7;+lP_D@+|;k@$7Otrv~pJohe56_A%D>iF4w~9yc0BCzfme?T1rIX?YF;QEi!mK)6?5gpuh9h4E>-s?Nn=?JKebKG{"
        "RC*PCVMC4ox8f3RloNi>F|F3OED`Z2=d)4;??KJ3*;9zMXkD4$lok&mkI?POlvytIhY+Fa%DwHMEz~+`a-?Aag%`F#S#X^A7{*T>wZ*j"
        "WwOX#SyrQ6U1*+-Fm5*-=Y*Knb1%)L(_F#lT1k#p#mXPRn0UYzG^56z6(vFGJ8W_8^Jn8S}GYLwyl#+$b%iqllvfPO()>tnB^j6ok-!N"
        "6FP~G#+*E*opfYw(hr>ohhlyv8PJ)4Npm`uLoxGJ%Dl@n&`UfVpPL0K!7p1p|M^C$a9^}7`9%K%6ZQYHQIGAiq`#So{zp|{fRAkW*7#^"
        "_dFRCrFTQ;#U!4nGuPIam=fa%p)vKY?X!=2QUc%LHWTZmmybTj#A`_wH`L*zTbWuQTg{Xvxt8lotXXjAH`Y=QT6Be*IE3=GvD`PRsD0{"
        "=Uea~}jvPMneYZ5T0{*`No0?Lg}q5~lkCea72ntFfclTYtqZ}(Da>hbP1^;qxSw_j|xR%{2snOIhh!BX+m4g^GA7Yg|2OZ>%c0k?;^t>"
        "E@2Zs07=W!yf)4W1=Rzq@wv3?#Xhf`yMeu`mSoSg{vXT{1+|R7KHH6-|+$q(NCxOxe&RS&~)5G;~9giOTc;{P=UXVo&dseir+``cdpBn"
        "En*|XPYVZbao8J%)ezpB6l|r3c#g;f(}mt6x?<}kxleZHbB9}LGgH?6BJqeA>*U5y9tV7ixi^PlNIb+R<KK$6wK0=IPv>0>e5~8>23-q"
        "PITwQaLUHr2gUA!Vx<69T5r4)Q)}d{D3enB3!TM(N6)_}L7}RWu85kU=+HDoNz^rss9e2We9;XQ^j7I7DAwOQP|%swKTtepQ$az8XCD+"
        "aD9-tf>7I~aB1nvm_J9MA;gAhc4kMxkhw-2OcytSUxRnBje0MmU+`?wv2gUA!Vq*so1+%Mfd@^M&1s3C-u+YK(2^5+nX(|*=C>fFt6&a"
        "rsmDd+v-021idfW696tCYqP|#V_KTy0(2L&CTy$6c_0OzX>pa"
    ),
    "plain/step-00000005/progress.json": (
        "c-l>lK@Ni;5Jj(IST|+_5$I(IGGl5gwQ(>_YP@@)-E{Z=`!AU}1ZR4RYojlXi2KItRtuE&TDJu~&u=QEE8wvw&mlb*;!2=OOoXMV5~uk"
        "$9HLE>1BM)`)`Kgf_u!$$nREPJb55QG|A|5>smIQdvsMn;VVD&3F<=Zv+8_r}KfF=A^PZ~jz-oiq8iS)E1+qgleM!;*L}kSJ0ih8+{r"
    ),
    "tiers/ns/000000000005.0000000000000001/manifest": (
        "c-nQ8Pe>F|9LGnUahFwLYs;jJC`xuIM%zq?2+B>xhFur6qm1+C&A!2PW}WxOQV}g!!FbT2CwS;u)V0W4;H86f2r}vtp6d`nL|uDtX8&Y"
        "sbDH0q-}`)j@B4ed@r)9-ftTJq_Mp9OZs&>e(OY@C@_S@e+;}Al!9z|KHQzBH@MO<-ussW8z6Hq$YMzNGiDos&wgAHP5l!8rQ#1($(xQ"
        "NcTC7M)6VS8UQkjx-*!2u3n>NCpt@{|5GGiMvCD(SaJPWX9YFOjc>T5t*rb&`OSi?XyZ3C;dME;?D)-^#<z60z6#1zKJ(MjMS*PCEkS^"
        "+eYVkOTl0gs&n@$`6@p06(knMooA#ZnTnimrw)rP(@3ga<&tv$dkVsA1c6C}~p*0INl9!S%Thq@$9>4rv0DmgzWMXG%xZ>`+!69vjczm"
        "{f;ynX#Lrxe=DH2tfv>IuVh*2xv`OoZunLXi>zqfJ0gh=sPorIm?L|9{l&D5!bR1!0edk6+say1c_?|Yc;B`Yralmp_5Q6S`;Qi2JD1g"
        "+zoh~MD@Ukivvsmo>_-IykeMSoaS;sfxWD#bY<UVu31^XQqKvM+CnA6Wq0ZzDT!T&f&PDWQU{5ostTz(UUXax0)GY<FhB?T<CFGMQF9#"
        "Nsnx3l4-qLSjJaI7PHPligBB43Pgsy=ffSa_qG>o?<{%Ub)Il-QQB@mtOmMf}k``;up<Kug))j%YhE3YnBVT7zB;{>jfchM<uS#Dg{`%"
        "$56H9hZ+4``Q=-F}iDC`a!c}ozY0?^@H#T?8^_Z0!o*E_+uOEubcMa;zCl?vZ~;Hjny-CwUhd#DalILKSo$jVn)sRq!h63xW-w%(t8Gx"
        "~P-%l4=HFMb`Kr|@>FkunYa+`hfr*>9{0Yva`BXZpCazwdO{aBt)}%~kjQ<u0Fknj?{U_W$8y$3V+`9(<3DFICcrG&_g_UH$`6y5T1"
    ),
    "tiers/ns/000000000005.0000000000000001/rank00000.shard": (
        "c-muN0D%U3AmIQ+K->Vt3xN0l5I+E721f=40U%ZYVgpA8G;qM4;Q#{#fSrLd5a7+s!oa}6fhi-vAjFVZl$?=Sma3nUSdyq$ke%b^#K#b"
        "Y0vec-<CF7KQj?3hQu9Czu0n<gpot9GsRbp4j1g==W=>*BW}aaoQ(GZ(P$7$6fHylw)S8!y#y}}!yiO2j;D9?pFD<_)H?btXEVZaOGe6"
        "JGi3RKuLy&3P-`{Cw1gdAmYnl{;Il{E!lKi5?^wjvooXqsR+|;}hHz#8>uMq{zOh68>FE4z_1hj$)uLA@b?BNbbsw_#(FG@)*a&xjK$6"
        "gr7$t)?!Nd>u~)%LL@D74w|x`Cg;7VZXkP+F4j0%I<a-52MjhZ6R`9D@-e0zgShzc{rh6Bq+kzyy+?7oVBp=A=iWQw)qO4J=H|EX>T!&"
        "CQG~jf@QqObiSROij%!EewF77A7V@Sp!RuE7?1ZA8P>Jp#gR!BgnCEcOoZ90SuR;=L2-z$O%v!MQ1aTZnPwfZU}NBl0q@$BC;VEDHq)w"
        "<b)uIVonev17-q5*Nz;Q{3zP5A!*0q2jn1@L$#ZUfk5O3c(bwTz>*5HE?g%Y8a<g2LjPcb6=7`PQm~r^!iSUstZWcHY+&^;wHN>Zo!1U"
        ")"
    ),
}
"""A plain checkpoint and one of a tier, as torch 2.13 and this package wrote them in 2026; compressed."""

WEIGHT = torch.arange(12, dtype=torch.float32).view(3, 4)


def earlier(root: Path) -> Path:
    for name, data in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(zlib.decompress(base64.b85decode(data)))
    return root


def empty_state() -> dict[str, Any]:
    half, count = torch.zeros(2, dtype=torch.bfloat16), torch.tensor(0)
    return {"model": {"weight": torch.zeros(3, 4), "half": half, "count": count}, "note": b""}


class Holder:
    """Takes the place of a `Content`: receives what was loaded."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {}

    def form(self, metadata: object, num_ranks: int) -> dict[str, Any]:
        return empty_state()

    def put(self, state: dict[str, Any], step: int, warn: object) -> None:
        self.state = state


def check(state: dict[str, Any]) -> None:
    assert torch.equal(state["model"]["weight"], WEIGHT) and state["note"] == b"kept"
    assert state["model"]["half"].tolist() == [1.5, -2.0] and state["model"]["count"].item() == 7


def test_a_plain_checkpoint_of_an_earlier_version_loads(tmp_path):
    holder = Holder()
    assert Checkpoints(earlier(tmp_path) / "plain").load(holder) == Progress(5, 50, 1, 100, 3)
    check(holder.state)


def tiers(root: Path) -> CheckpointManager:
    return CheckpointManager(None, [StoreTier(Folder(root / "tiers/ns"), 1, 2)], CheckpointLog("ns", 0), patience_s=0)


def test_a_checkpoint_of_a_tier_of_an_earlier_version_loads(tmp_path):
    restored = tiers(earlier(tmp_path)).load(lambda manifest: empty_state())
    assert restored and (restored.step, restored.progress, restored.world_size) == (5, {"cursor": 50}, 1)
    check(restored.state)


NAMES = [name for name in FILES if not name.endswith("latest")]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("place", [0, 1, 2], ids=["start", "middle", "end"])
def test_a_changed_byte_of_an_earlier_version_is_still_found(tmp_path, name, place):
    path = earlier(tmp_path) / name
    data = bytearray(path.read_bytes())
    size = len(data.rstrip(b"\0"))  # the rest is room that no piece lies in
    data[(0, size // 2, size - 1)[place]] ^= 1
    path.write_bytes(data)
    with pytest.raises((CheckpointBroken, CheckpointUnavailable)):
        if name.startswith("plain"):
            Checkpoints(tmp_path / "plain", patience_s=0).load(Holder())
        else:
            tiers(tmp_path).load(lambda manifest: empty_state())
