"""Forms of tokens that are recognizable without their name: prefixes that issuers chose, webhooks, private keys.

Source: the issuers' documentation, as GitHub (Secret scanning, Supported patterns), gitleaks (config/gitleaks.toml),
TruffleHog (pkg/detectors) and detect-secrets (plugins) list them; AWS IAM, Unique identifiers; RFC 7519, 3.1;
RFC 7468.
"""

import re

from launcher.common.secret_names import words_in

_PREFIXED = (
    r"hf_[A-Za-z0-9]{30,}",
    r"gh[pousr]_[A-Za-z0-9]{36,}",
    r"github_pat_\w{30,}",
    r"gl(?:pat|dt|cbt|ptt|ft|imt|agent|soat|rt|oas|ffct)-[\w-]{20,}",
    r"glsa_\w{32,}",  # Grafana
    r"glc_[A-Za-z0-9+/=]{32,}",
    r"gsk_[A-Za-z0-9]{32,}",  # Groq
    r"GOCSPX-[\w-]{20,}",
    r"sk-[\w-]{32,}",  # OpenAI, Anthropic and others
    r"[srp]k_(?:live|test)_[A-Za-z0-9]{16,}",  # Stripe
    r"sntry[su]_[\w+/=-]{32,}",
    r"shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}",
    r"secret_[A-Za-z0-9]{40,}",  # Notion, Lambda
    r"xox[abeprs]-[\w-]{10,}",
    r"xapp-\d-[\w-]{10,}",
    r"xai-[A-Za-z0-9]{40,}",
    r"(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])",
    r"AIza[\w-]{35}(?![\w-])",
    r"AKID[A-Za-z0-9]{32}(?![A-Za-z0-9])",  # Tencent
    r"AGE-SECRET-KEY-1[0-9A-Z]{58}",
    r"ATATT3[\w=-]{40,}",  # Atlassian, Bitbucket
    r"ATBB[A-Za-z0-9]{28,}",
    r"LTAI[A-Za-z0-9]{16,24}(?![A-Za-z0-9])",  # Alibaba
    r"NRAK-[A-Z0-9]{27}",  # New Relic
    r"PMAK-[0-9a-f]{24}-[0-9a-f]{34}",
    r"SG\.[\w-]{16,}\.[\w-]{16,}",  # SendGrid
    r"dapi[0-9a-f]{32}(?:-\d)?(?![A-Za-z0-9])",  # Databricks
    r"do[opr]_v1_[0-9a-f]{64}",  # DigitalOcean
    r"dp\.(?:pt|st|ct|sa|scim|audit)\.[A-Za-z0-9.]{40,}",  # Doppler
    r"figd_[\w-]{40,}",
    r"hv[sbr]\.[\w-]{24,}",  # Vault
    r"lin_api_[A-Za-z0-9]{40}",
    r"lsv2_(?:pt|sk)_[0-9a-f]{32}_[0-9a-f]{10}",  # LangSmith
    r"npm_[A-Za-z0-9]{36}",
    r"nvapi-[\w-]{40,}",
    r"pplx-[A-Za-z0-9]{40,}",
    r"pscale_(?:tkn|oauth|pw)_[\w=.-]{32,}",
    r"pul-[0-9a-f]{40}",
    r"pypi-AgE[\w-]{50,}",
    r"r8_[A-Za-z0-9]{37}",
    r"rpa_[A-Z0-9]{40,}",
    r"tskey-[a-z]+-[\w-]{16,}",
    r"wandb_v1_\w{40,}",
    r"ya29\.[\w-]{20,}",
    r"[A-Za-z0-9]{14}\.atlasv1\.[\w-]{60,}",
    r"eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]+",  # JSON Web Tokens
    r"-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----.*",
    r"PuTTY-User-Key-File-\d.*",
)
_WEBHOOKS = (
    r"hooks\.slack(?:-gov)?\.com/(?:services|workflows|triggers)/[\w/+-]{8,}",
    r"(?:\w+\.)?discord(?:app)?\.com/api/(?:v\d+/)?webhooks/\d+/[\w-]{8,}",
    r"[\w-]+\.webhook\.office\.com/webhookb2/[\w@/-]{8,}",
    r"outlook\.office(?:365)?\.com/webhook/[\w@/-]{8,}",
    r"chat\.googleapis\.com/v1/spaces/[\w/-]+\?\S*key=\S+",
    r"hooks\.zapier\.com/hooks/catch/[\w/]{8,}",
    r"maker\.ifttt\.com/trigger/[^\s/]+/(?:json/)?with/key/[\w-]{8,}",
    r"hc-ping\.com/[\w-]{16,}",
    r"events\.pagerduty\.com/integration/\w{16,}",
    r"open\.(?:feishu\.cn|larksuite\.com)/open-apis/bot/v2/hook/[\w-]{8,}",
    r"(?:oapi\.dingtalk\.com/robot/send\?access_token=|qyapi\.weixin\.qq\.com/cgi-bin/webhook/send\?key=)[\w-]{8,}",
    r"api\.telegram\.org/bot\d+:[\w-]{30,}",
    r"[\w.:-]+/hooks/[A-Za-z0-9]{20,}",  # Mattermost, Rocket.Chat
)
"""Addresses that whoever knows them can post to."""
_NOTIFIERS = words_in(
    "46elks acs apprise apprises aprs atalk awswhatsapp bale bark barks betterstack bluesky brevo bsky bulksms"
    " bulkvs burstsms chanify clickatell clicksend cliq cm d7sms dapnet deltachat deltachats dingtalk discord dot"
    " eight00com elks emby embys evolution evolutions exotel fcm feishu firehydrant flock flowtriq flowtriqs fluxer"
    " fluxers freemobile gchat gitter goalert goalerts gorush gorushs gotify gotifys groundmail groupme guilded"
    " gupshup hassio hassios httpsms humhub humhubs ifttt ilert incidentio infobip instagram jellyfin jellyfins jira"
    " join kakao kakaotalk kaleyra kavenegar klr kook kudosity kumulos lametric lametrics lark lauther lfg line"
    " mailersend mailgun mastodon mastodons matrix matrixs misskey misskeys mmost mmosts mobilemessage mobilemsg"
    " msg91 msgbird msteams ncloud nclouds nctalk nctalks nexmo nostr notica noticas notifiarr notifico notificos"
    " notifyapp notifyre ntfy ntfys o365 octopush onebot onebots onesignal opsgenie opsimate opsimates pagerduty"
    " pagertree parsep parseps pbul pinglet pinglets pingram pjet pjets plivo postmark pover prowl psafer psafers"
    " push pushdeer pushdeers pushed pushme pushplus pushward pushy qq reddit resend revolt ringc rocket rockets"
    " ryver schan sendgrid sendpulse serwersms ses seven sfr signal signalgrid signals signl4 simplepush sinch slack"
    " smsc smseagle smseagles smsmanager smsmgr smstunnel smtp2go sns sparkpost spike splunk spugpush spush"
    " squadcast stackfield strmlabs synology synologys telesign telnyx tgram threema toot toots trigv trigvs tweet"
    " twilio twist twitter vapid viber victorops voipms vonage webex wechat wecom wecombot whapi whatsapp workflow"
    " workflows wpush wxpusher wxteams x xmatters youlmk zalo zcliq zohocliq zoom zulip"
)
"""Schemes of Apprise whose addresses consist of tokens. Omitted: those where only a password before the host is one,
such as json and mailto, and azure and github, which storage has too. Source: Apprise 2.3, details of its plugins."""
_NOTIFIER = re.compile(r"(?<![A-Za-z0-9])([A-Za-z0-9]{1,13})://[\w.@:%~/+=-]{8,}")
_POSTED = re.compile(
    r"(?<![A-Za-z0-9])(?:json|xml|form)s?://[^\s/]+/(?:[^\s/?]+/)*"
    r"(?=[\w-]*\d)(?=[\w-]*[A-Za-z])[\w-]{20,}",
    re.I,
)
"""Addresses of web servers of one's own, with a token in the path, as Apprise spells them."""
_SIGNATURE = r"[?&](?:sig|[Ss]ignature|X-(?:Amz|Goog)-(?:Signature|Security-Token))=[\w%+/=.~-]{16,}"
"""Of an address that grants access to whoever has it. Source: Azure Storage, Service SAS; Amazon S3, Signature
Version 4, Query parameters; Google Cloud Storage, Signed URLs."""

_TOKEN = re.compile(
    rf"(?<![A-Za-z0-9])(?:{'|'.join(_PREFIXED)}"
    rf"|https://(?:{'|'.join(_WEBHOOKS)}))|{_SIGNATURE}",
    re.S,
)
_CANDIDATE = re.compile(r"[\w-]{13}|://|-----BEGIN|[?&]\w*[Ss]ig")
"""Present in every text with a token: most lines of a log have none, and this is found faster."""


def holds(text: str) -> bool:
    """Return whether a text contains a token."""
    if _CANDIDATE.search(text) is None:
        return False
    return _TOKEN.search(text) is not None or ("://" in text and any(map(_is_notifier, _addresses(text))))


def masked(text: str) -> str:
    """Return a text without its tokens."""
    if not _CANDIDATE.search(text):
        return text
    if "://" in text:
        for address in _addresses(text):
            text = text.replace(address[0], "…") if _is_notifier(address) else text
    return _TOKEN.sub("…", text)


def _addresses(text: str) -> list[re.Match[str]]:
    return [*_NOTIFIER.finditer(text), *_POSTED.finditer(text)]


def _is_notifier(address: re.Match[str]) -> bool:
    return address.re is _POSTED or address[1].lower() in _NOTIFIERS
